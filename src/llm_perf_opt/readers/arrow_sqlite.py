"""SQLite columns as NumPy arrays, fast.

Python's own `sqlite3` makes an object of every value, which costs more than all the rest of a report.
The ADBC driver fills Arrow buffers in C; they are copied from there into arrays of the width asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llm_perf_opt.errors import UnreadableInput

_BATCH_ROWS = 16384  # large enough to amortise a batch, small enough to stay in the cache

Progress = Callable[[int], None]


def sqlite_uri(path: Path) -> str:
    """A URI that opens `path` for reading only and takes no lock, whatever characters are in its name."""
    return f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"


class ArrowSqlite:
    """A read-only connection that returns query results as columns."""

    def __init__(self, path: Path) -> None:
        import adbc_driver_manager
        import adbc_driver_sqlite

        self._manager = adbc_driver_manager
        self._database = adbc_driver_manager.AdbcDatabase(
            driver=adbc_driver_sqlite._driver_path(), uri=sqlite_uri(path)
        )
        self._connection = adbc_driver_manager.AdbcConnection(self._database)

    def __enter__(self) -> ArrowSqlite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._database.close()

    def columns(
        self,
        table: str,
        select: Mapping[str, tuple[str, DTypeLike]],
        where: str = "",
        expected_rows: int = 0,
        progress: Progress | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Integer columns of a table: `{key: (SQL expression, dtype)}`. NULL must be handled in the SQL.

        `expected_rows` sizes the arrays beforehand, so that ten million rows are not held twice.
        """
        import nanoarrow

        expressions = ", ".join(expression for expression, _ in select.values())
        query = f'SELECT {expressions} FROM "{table}" {where}'  # noqa: S608 - names come from this package
        statement = self._manager.AdbcStatement(self._connection)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(query)
            handle, _ = statement.execute_query()
            stream = nanoarrow.ArrayStream(handle)
            arrays = {key: np.empty(expected_rows, dtype=dtype) for key, (_, dtype) in select.items()}
            filled = 0
            for chunk in stream.iter_chunks():
                rows = len(chunk)
                if filled + rows > expected_rows:
                    expected_rows = max(filled + rows, expected_rows + expected_rows // 2)
                    arrays = {key: _grown(a, filled, expected_rows) for key, a in arrays.items()}
                for position, key in enumerate(select):
                    arrays[key][filled : filled + rows] = _integers(chunk.child(position), rows, table)
                filled += rows
                if progress is not None:
                    progress(rows)
        except self._manager.Error as error:
            raise UnreadableInput(f"The table {table} cannot be read: {error}.") from error
        finally:
            statement.close()
        return {key: a[:filled] for key, a in arrays.items()}


def _grown(array: NDArray[Any], filled: int, size: int) -> NDArray[Any]:
    larger = np.empty(size, dtype=array.dtype)
    larger[:filled] = array[:filled]
    return larger


def _integers(column: Any, rows: int, table: str) -> NDArray[np.int64]:
    """The values of one Arrow column, which must be whole numbers."""
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    if "int64" not in str(column.schema):
        raise UnreadableInput(f"The table {table} holds {column.schema} where nsys writes whole numbers.")
    return np.asarray(column.buffer(1))[column.offset : column.offset + rows]
