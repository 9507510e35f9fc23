"""The tables as Parquet, where pyarrow is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import MissingTool
from llm_perf_opt.report.files import make_folder, replaced
from llm_perf_opt.report.renderers import Exporter, ExportSource
from llm_perf_opt.report.tables import table_files, tables_of

_MARK = {b"written_by": b"llm-perf"}


def _write(source: ExportSource, folder: Path) -> list[Path]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingTool(
            "Parquet needs pyarrow, which is not installed here.", "pip install pyarrow, or use --csv DIR."
        ) from error
    make_folder(folder)
    written = []
    for name, table in tables_of(source).items():
        path = folder / f"{name}.parquet"
        arrays = {column: _arrow_values(values) for column, values in table.items()}
        with replaced(path) as raw:
            content = pyarrow.table(arrays).replace_schema_metadata(_MARK)
            pyarrow.parquet.write_table(content, raw, compression="zstd")
        written.append(path)
    return written


def _arrow_values(values: Sequence[Any]) -> Sequence[Any]:
    """UTF-8 has no form for half of a surrogate pair: it is kept as an escape."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]


def _is_ours(path: Path) -> bool:
    try:
        import pyarrow
        import pyarrow.parquet

        found = pyarrow.parquet.read_schema(path).metadata or {}
        return _MARK.items() <= found.items()
    except (ImportError, OSError, pyarrow.ArrowException):
        return False


EXPORTER = Exporter(_write, lambda folder: table_files(folder, ".parquet"), _is_ours)
