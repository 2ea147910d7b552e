"""Packages relax_rollout together with the Go library and the agent supervisor.

All else is in pyproject.toml. The two binaries are built by `make lib`, which is the one place
that knows how, and leaves up-to-date ones alone. RELAX_ROLLOUT_PREBUILT=1 takes those that lie
in the package and builds nothing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
PACKAGE = ROOT / "python" / "relax_rollout"
BINARIES = ("librelax_rollout.so", "bin/relax-agent-init")


def provide_binaries() -> None:
    """Builds the binaries into the package, or checks that they are there."""
    if os.environ.get("RELAX_ROLLOUT_PREBUILT") != "1":
        subprocess.run(["make", "lib"], cwd=ROOT, check=True)
    missing = [name for name in BINARIES if not (PACKAGE / name).is_file()]
    if missing:
        raise SystemExit(
            f"setup.py: {PACKAGE} lacks {', '.join(missing)}: run `make lib` in {ROOT}, "
            "or unset RELAX_ROLLOUT_PREBUILT"
        )


class BuildBinaries(build_ext):
    """Puts the binaries into the build, with their mode bits; in place they already are."""

    def run(self) -> None:
        """Builds, then copies unless the build is in place."""
        provide_binaries()
        for source, target in self.get_output_mapping().items():
            Path(source).parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(target, source)

    def _targets(self) -> dict[str, str]:
        package = Path(self.build_lib) / "relax_rollout"
        return {str(package / name): str(PACKAGE / name) for name in BINARIES}

    def get_output_mapping(self) -> dict[str, str]:
        """What a build makes, and where it lies in the source tree."""
        return {} if self.inplace else self._targets()

    def get_outputs(self) -> list[str]:
        """What a build makes."""
        return [str(PACKAGE / name) for name in BINARIES] if self.inplace else [*self._targets()]

    def get_source_files(self) -> list[str]:
        """Nothing: MANIFEST.in names the sources."""
        return []


class PlatformWheel(bdist_wheel):
    """One wheel for every CPython 3 of a platform: the library knows nothing of Python."""

    def finalize_options(self) -> None:
        """Marks the wheel as holding binaries."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Installs beside other packages with binaries (platlib)."""

    def has_ext_modules(self) -> bool:
        """True: build_ext is to run."""
        return True


setup(
    distclass=BinaryDistribution,
    # Never compiled: it makes setuptools run build_ext, also for editable installs.
    ext_modules=[Extension("relax_rollout._binaries", sources=[])],
    cmdclass={"build_ext": BuildBinaries, "bdist_wheel": PlatformWheel},
)
