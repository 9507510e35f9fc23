"""Which stages a profiler is switched on around, for the annotation inside the program to act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from attrs import define


@define(frozen=True)
class Gate:
    """Windows in which ncu profiles (`--profile-from-start off`)."""

    windows: Mapping[str, tuple[int, ...]]  # of each stage, its numbers in the process, from 1
    stop: bool = False  # end the program once all of them have been

    def environment(self, file: Path, log: Path) -> dict[str, str]:
        """Write the windows to `file`; the variables that make the program use them, and note in `log` what it did."""
        windows = {name: list(numbers) for name, numbers in self.windows.items()}
        file.write_text(json.dumps({"windows": windows, "stop": self.stop}) + "\n", encoding="utf-8")
        log.unlink(missing_ok=True)
        return {"LLM_PERF_GATE": str(file.resolve()), "LLM_PERF_ANNOTATE_LOG": str(log.resolve())}
