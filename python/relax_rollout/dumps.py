"""Parquet files of ``save_debug_rollout_data``: the rows of each step.

May enter: options, batches, pyarrow. Never: the engine. What a name in ``.jsonl`` asks for the
library writes by itself, and so it does the traces beside a Parquet file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    from .batch import Batch
    from .report import StepReport

OPTION = "save_debug_rollout_data"


class ParquetDump:
    """Writes a file a step. One that cannot be written is a warning and fails nothing."""

    def __init__(self, pattern: str, log: logging.Logger) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as err:
            raise ConfigError(
                f"option {OPTION}: a name in .parquet needs the package pyarrow: "
                "pip install relax-rollout[arrow]; or choose a name in .jsonl",
                OPTION,
            ) from err
        self._pa: Any = pyarrow
        self._pattern = pattern
        self._log = log

    @classmethod
    def wanted(cls, options: Mapping[str, Any], log: logging.Logger) -> ParquetDump | None:
        """The dump that the options ask for, None if they ask for none in Parquet."""
        pattern = str(options.get(OPTION) or "")
        return cls(pattern, log) if pattern.endswith(".parquet") else None

    def path(self, report: StepReport) -> Path:
        """The file of a step."""
        step = f"eval_{report.rollout}" if report.eval else str(report.rollout)
        return Path(self._pattern.replace("{rollout_id}", step))

    def write(self, report: StepReport, batches: Mapping[str, Batch]) -> None:
        """Writes the rows of a step; those of an Eval have a column ``dataset``."""
        path = self.path(report)
        try:
            tables = [self._table(report, name, batch) for name, batch in batches.items()]
            if not tables:
                path.unlink(missing_ok=True)  # of an earlier run
                return
            table = self._pa.concat_tables(tables, promote_options="default")
            self._pa.parquet.write_table(table, str(path))
        except (OSError, self._pa.ArrowException) as err:
            self._log.warning("option %s: %s: %s", OPTION, path, err)

    def _table(self, report: StepReport, name: str, batch: Batch) -> Any:
        table = self._pa.Table.from_batches([batch.to_arrow()])
        if not report.eval:
            return table
        column = self._pa.array([name] * len(batch), self._pa.string())
        return table.append_column("dataset", column)
