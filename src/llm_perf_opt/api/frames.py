"""Tables as data frames of pandas or polars: the library already imported, else the one installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from llm_perf_opt.errors import MissingTool
from llm_perf_opt.report.tables import Table

DataFrame: TypeAlias = Any  # of pandas or of polars: neither has to be installed


def data_frame(table: Table) -> DataFrame:
    """A frame of the library the user works with; integers stay integers where values are missing."""
    for name in sorted(("pandas", "polars"), key=lambda name: name not in sys.modules):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        if name == "polars":
            return library.DataFrame({key: list(values) for key, values in table.items()}, infer_schema_length=None)
        return library.DataFrame(
            {
                key: library.array(values, dtype="Int64") if _has_gaps(values) else values
                for key, values in table.items()
            }
        )
    raise MissingTool("Data frames need pandas or polars, and neither is installed.", "pip install pandas")


def _has_gaps(values: Sequence[Any]) -> bool:
    """Integers of which some are missing: pandas would turn them into floats."""
    kinds = set(map(type, values))
    return kinds == {int, type(None)} and all(v is None or abs(v) < 2**63 for v in values)
