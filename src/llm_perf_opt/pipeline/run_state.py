"""What a run directory says of itself: how far the run came, and what its steps had to say.

A report that is built again must not know less than the first one did, and a run that was killed must say
what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.profiling.run_directory import LARGEST_MANIFEST, MANIFEST
from llm_perf_opt.regions.model import Diagnosis


@define
class RunState:
    """The part of a manifest that matters to a reader of the run."""

    diagnostics: list[Diagnosis]
    selection: dict[str, Any]  # what the run was asked to report

    @property
    def reasons(self) -> str:
        """Why something is missing, in one text."""
        return " ".join(d.message for d in self.diagnostics if d.severity != "info")


def state_of(run: Path) -> RunState | None:
    """The state of a run directory; None where there is no manifest, or none that can be read."""
    try:
        file = run / MANIFEST
        if not file.is_file() or file.stat().st_size > LARGEST_MANIFEST:  # a pipe would never end
            return None
        manifest = json.loads(file.read_text(encoding="utf-8"))
        steps: Sequence[dict[str, Any]] = manifest["steps"]
        said = [d for step in steps for d in step["diagnostics"]] + manifest["diagnostics"]
        diagnostics = [
            Diagnosis(**{name: str(d[name]) for name in ("code", "severity", "message", "fix")}) for d in said
        ]
        if manifest["state"] == "running":
            diagnostics.insert(0, _unfinished(steps))
        selection = manifest.get("selection")
        return RunState(diagnostics, selection if isinstance(selection, dict) else {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _unfinished(steps: Sequence[dict[str, Any]]) -> Diagnosis:
    """The run neither ended nor was ended in order: it still runs, or it was killed."""
    at = next((step["name"] for step in reversed(steps) if step["status"] == "running"), None)
    where = f"while {at} was running" if at else "between two steps" if steps else "before its first step"
    return Diagnosis(
        "RUN_UNFINISHED",
        "warning",
        f"This run has not finished: it still goes on, or it was killed {where}. What later steps would have given is missing.",
        "If nothing of it runs any more, take what is missing: llm-perf profile --resume RUN",
    )
