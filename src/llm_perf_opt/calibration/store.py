"""Where calibrations are kept: one JSON file in the user's cache, one entry a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.files import cache_folder, write_text
from llm_perf_opt.metrics.quantity import Quantity, UnitError
from llm_perf_opt.untrusted import read_json

_SCHEMA = 1
Entry = dict[str, Any]


def default_path() -> Path:
    """`$XDG_CACHE_HOME/llm-perf-opt/calibration.json`."""
    return cache_folder() / "calibration.json"


def load(path: Path) -> list[Entry]:
    """All calibrations of a file; `UserError` where it is not one."""
    try:
        data = read_json(path)
        entries = data["calibrations"]
        for entry in entries:
            _check(entry)
    except OSError as error:
        raise UserError(
            f"The calibration {path} cannot be read: {error.strerror or error}.", "Make one with: llm-perf calibrate"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is not a calibration file of llm-perf ({error}).", "Delete it and run: llm-perf calibrate"
        ) from error
    return list(entries)


def load_default() -> list[Entry]:
    """The calibrations of this machine; none where none was made."""
    path = default_path()
    return load(path) if path.exists() else []


def save(entry: Entry, path: Path) -> None:
    """Add a calibration; an earlier one of the same GPU is replaced."""
    _check(entry)
    known = load(path) if path.exists() else []
    kept = [e for e in known if not _same_gpu(e, entry)]
    text = json.dumps({"schema": _SCHEMA, "calibrations": [*kept, entry]}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise UserError(
            f"The calibration cannot be written to {path}: {error.strerror or error}.", "Choose a file with --out."
        ) from error


def _same_gpu(a: Entry, b: Entry) -> bool:
    if a.get("uuid") and b.get("uuid"):
        return bool(a["uuid"] == b["uuid"])
    return bool(a["gpu"] == b["gpu"])


def _check(entry: Entry) -> None:
    """Every amount has a unit of the right kind."""
    if not isinstance(entry["gpu"], str):
        raise ValueError("a GPU without a name")
    amounts = [(kind, value, "FLOP/s") for kind, value in entry["peaks"].items()]
    if entry.get("bandwidth"):
        amounts.append(("bandwidth", entry["bandwidth"], "B/s"))
    for name, value, unit in amounts:
        try:
            quantity = Quantity(float(value["value"]), str(value["unit"]))
        except UnitError as error:
            raise ValueError(f"{name}: {error}") from error
        if quantity.unit != unit or quantity.value <= 0:
            raise ValueError(f"{name} is {quantity.value} {quantity.unit}, and {unit} above 0 is needed")
