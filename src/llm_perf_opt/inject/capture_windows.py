"""Which ranges a profiler is switched on around, for the code inside the program to act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, define

from llm_perf_opt.files import write_text

AWAITED = "LLM_PERF_WINDOWS_WAIT"
Named = tuple[str, str]  # the domain of a range ("": the default one) and its name


@define(frozen=True)
class CaptureWindows:
    """Windows in which ncu profiles (`--profile-from-start off`); or, with `switch` off, what a program has to have done."""

    windows: Mapping[Named, tuple[int, ...]]  # numbers of ranges among those of their name in the process, from 1
    stop: bool = False  # end the program once all of them have been
    pauses: Mapping[Named, tuple[int, ...]] = Factory(dict)  # ranges inside windows in which ncu does not profile
    switch: bool = True

    @property
    def count(self) -> int:
        return sum(map(len, self.windows.values()))

    def as_json(self) -> dict[str, Any]:
        rows = {"windows": _rows(self.windows), "pauses": _rows(self.pauses)}
        return {**rows, "stop": self.stop, **({} if self.switch else {"switch": False})}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> CaptureWindows:
        windows, pauses = _ranges(raw["windows"]), _ranges(raw["pauses"])
        return CaptureWindows(windows, raw["stop"] is True, pauses, raw.get("switch") is not False)

    def environment(self, file: Path, log: Path) -> dict[str, str]:
        """Write the windows to `file`; the variables that make the program use them, and note in `log` what it did."""
        log.unlink(missing_ok=True)
        self.write(file)
        return windows_environment(file, log)

    def write(self, file: Path) -> None:
        """In one step: a program may be waiting for them."""
        write_text(file, json.dumps(self.as_json()) + "\n")


def windows_environment(file: Path, log: Path, *, awaited: bool = False) -> dict[str, str]:
    """The variables for a program with windows in `file`; `awaited`: it is to wait for the file at its first range."""
    found = {"LLM_PERF_WINDOWS": str(file.resolve()), "LLM_PERF_ANNOTATE_LOG": str(log.resolve())}
    return {**found, **({AWAITED: "1"} if awaited else {})}


def _rows(ranges: Mapping[Named, tuple[int, ...]]) -> list[Any]:
    return [[domain, name, list(numbers)] for (domain, name), numbers in ranges.items()]


def _ranges(rows: Any) -> dict[Named, tuple[int, ...]]:
    return {(str(domain), str(name)): tuple(map(int, numbers)) for domain, name, numbers in rows}
