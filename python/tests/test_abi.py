"""The ctypes structs and prototypes are those of include/relax_rollout.h."""

import ctypes
import re
import subprocess

import pytest
from conftest import ROOT

from relax_rollout import _lib

HEADER = ROOT / "include" / "relax_rollout.h"
STRUCTS = {
    "relax_error": _lib.CError,
    "relax_str": _lib.CStr,
    "relax_bytes": _lib.CBytes,
    "relax_column": _lib.CColumn,
    "relax_batch": _lib.CBatch,
    "relax_event": _lib.CEvent,
}
CONSTANTS = {
    "RELAX_ABI_VERSION": _lib.ABI_VERSION,
    "RELAX_ABI_MINOR": _lib.ABI_MINOR,
    "RELAX_OK": _lib.OK,
    "RELAX_TIMEOUT": _lib.TIMEOUT,
    "RELAX_CLOSED": _lib.CLOSED,
    "RELAX_ERR_INVALID": _lib.ERR_INVALID,
    "RELAX_ERR_STATE": _lib.ERR_STATE,
    "RELAX_ERR_ALREADY": _lib.ERR_ALREADY,
    "RELAX_ERR_NOMEM": _lib.ERR_NOMEM,
    "RELAX_ERR_IO": _lib.ERR_IO,
    "RELAX_ERR_BACKEND": _lib.ERR_BACKEND,
    "RELAX_ERR_ABI": _lib.ERR_ABI,
    "RELAX_ERR_FORKED": _lib.ERR_FORKED,
    "RELAX_ERR_PANIC": _lib.ERR_PANIC,
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """Sizes, offsets and constants as the C compiler sees them."""
    lines = ["#include <stdio.h>", f'#include "{HEADER}"', "int main(void) {"]
    for name, mirror in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in mirror._fields_:
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}),'
                f" sizeof((({name} *)0)->{field}));"
            )
    for name in CONSTANTS:
        lines.append(f'printf("{name} %d\\n", (int){name});')
    lines += ["return 0; }"]
    home = tmp_path_factory.mktemp("abi")
    (home / "facts.c").write_text("\n".join(lines))
    subprocess.run(["cc", "-o", home / "facts", home / "facts.c"], check=True)
    out = subprocess.run([home / "facts"], check=True, capture_output=True, text=True).stdout
    return {k: tuple(map(int, v)) for k, *v in map(str.split, out.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct(facts, name):
    mirror = STRUCTS[name]
    assert ctypes.sizeof(mirror) == facts[name][0]
    for field, *_ in mirror._fields_:
        place = getattr(mirror, field)
        assert (place.offset, place.size) == facts[f"{name}.{field}"], field


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_has_all_fields(name):
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(rf"typedef struct {name} \{{(.*?)\}}", text, re.S).group(1)
    declared = re.findall(r"\b(\w+)(?:\[\d+\])?\s*[,;]", body)
    assert declared == [f[0] for f in STRUCTS[name]._fields_]


def test_constants(facts):
    assert {name: facts[name][0] for name in CONSTANTS} == CONSTANTS


def test_event_kinds():
    from relax_rollout import EventKind

    declared = dict(re.findall(r"RELAX_EVENT_(\w+) = (\d+)", HEADER.read_text()))
    assert {k: int(v) for k, v in declared.items()} == {k.name: k.value for k in EventKind}


def test_every_function_is_bound():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    declared = {}
    for name, parameters in re.findall(r"\b(relax_\w+)\(([^)]*)\);", text):
        declared[name] = 0 if parameters.strip() == "void" else parameters.count(",") + 1
    assert declared == {n: len(p[1]) for n, p in _lib._PROTOTYPES.items()}


def test_the_library_speaks_this_abi():
    library = _lib.load()
    info = library.build_info()
    assert info["abi"] == f"{_lib.ABI_VERSION}.{_lib.ABI_MINOR}"
    assert info["go"].startswith("go1.")
    assert _lib.load() is library
