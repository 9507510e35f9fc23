"""What a run directory says of itself: how far the run came, and what its steps had to say.

A report that is built again must not know less than the first one did, and a run that was killed must say
what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.rundir.layout import MANIFEST, PACKED, artefact, input_patterns, is_of_verification, names_of_step
from llm_perf_opt.rundir.manifest import LARGEST_MANIFEST
from llm_perf_opt.untrusted import read_json

RESUMABLE = ("profile", "deep_profile_runner")  # what made a run that can be gone on with


@define
class RunState:
    """The part of a manifest that matters to a reader of the run."""

    diagnostics: list[Diagnosis]
    selection: dict[str, Any]  # what the run was asked to report
    made_by: str = ""

    @property
    def reasons(self) -> str:
        """Why something is missing, in one text."""
        return " ".join(d.message for d in self.diagnostics if d.severity != "info")


def state_of(run: Path) -> RunState | None:
    """The state of a run directory; None where there is no manifest. One that cannot be read is reported."""
    if not os.path.lexists(run / MANIFEST):
        return None
    try:
        manifest = read_json(run / MANIFEST, LARGEST_MANIFEST)
        steps: Sequence[dict[str, Any]] = manifest["steps"]
        noted = [d for step in steps for d in step["diagnostics"]] + manifest["diagnostics"]
        diagnostics = [
            Diagnosis(**{name: str(d[name]) for name in ("code", "severity", "message", "fix")}) for d in noted
        ]
        # Two steps that run the same program fail alike.
        diagnostics = [d for number, d in enumerate(diagnostics) if d not in diagnostics[:number]]
        if manifest["state"] == "running":
            diagnostics.insert(0, _unfinished(steps))
        elif manifest["state"] == "interrupted" and not any(d.code == "INTERRUPTED" for d in diagnostics):
            diagnostics.insert(0, diagnose("RUN_UNFINISHED.interrupted"))
        selection, refused = _selection(manifest.get("selection"))
        return RunState([*diagnostics, *_gone(run, steps), *refused], selection, str(manifest.get("made_by", "")))
    except OSError as error:
        return RunState([_unreadable(error.strerror or str(error))], {})
    except ValueError as error:
        return RunState([_unreadable(str(error))], {})
    except (KeyError, TypeError, AttributeError):
        return RunState([_unreadable("it is not what llm-perf writes")], {})


def _gone(run: Path, steps: Sequence[dict[str, Any]]) -> list[Diagnosis]:
    """Recordings that the run took and that are no longer there, neither as they were nor packed."""
    names = (
        name
        for step in steps
        if step["status"] in ("captured", "partial", "done")
        for name in names_of_step(step["name"], str(step.get("capture", "")), step.get("files") or {})
    )
    taken: dict[str, list[str]] = {}
    for name in dict.fromkeys(islice(names, _MOST_NAMES)):
        if (row := artefact(name)) is not None and not is_of_verification(Path(name).name):
            taken.setdefault(row.input, []).append(name)
    places = (run, *run.glob("earlier-*"))  # what could not be taken again is read from there
    gone = {role: [name for name in names if not _is_there(places, name)] for role, names in taken.items()}
    lost = []
    if gone.get("timeline") == taken.get("timeline"):  # one form of it is enough
        lost += gone.get("timeline", [])[:1]
    has_table = any(path for pattern in input_patterns("counter table") for path in run.glob(pattern))
    if not (has_table and gone.get("counters") == taken.get("counters")):  # else the table takes their place
        lost += gone.get("counters", [])
    named = ", ".join(lost[:_MOST_LISTED]) + (f" and {len(lost) - _MOST_LISTED} more" if lost[_MOST_LISTED:] else "")
    return [diagnose("RECORDING_GONE", files=named)] if lost else []


_MOST_NAMES, _MOST_LISTED = 2_000, 5  # files of a run that are looked for; that are named where they are gone


def _is_there(places: Iterable[Path], name: str) -> bool:
    return any((place / f"{name}{ending}").is_file() for place in places for ending in ("", *PACKED))


def _unreadable(why: str) -> Diagnosis:
    return diagnose("MANIFEST_UNREADABLE", why=why[:200])


_SELECTION = ("include", "exclude", "kernel_include", "kernel_exclude")
_MOST_PATTERNS = 100


def _selection(chosen: object) -> tuple[dict[str, list[str]], list[Diagnosis]]:
    """What the run was asked to report, where that can be taken over from a file that anybody may have written."""
    found: dict[str, list[str]] = {}
    if not isinstance(chosen, dict):
        return found, []
    for name in _SELECTION:
        patterns = chosen.get(name, [])
        few = isinstance(patterns, list) and len(patterns) <= _MOST_PATTERNS
        if not few or not all(isinstance(p, str) and _is_harmless(p) for p in patterns):
            return {}, [diagnose("SELECTION_NOT_USED")]
        found[name] = patterns
    return found, []


def _is_harmless(pattern: str) -> bool:
    """Few repetitions, none inside another: an untrusted pattern can keep a search busy for years."""
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    return len(pattern) <= 4096 and repeats <= 3 and not re.search(r"\)[*+{?]", pattern)


def _unfinished(steps: Sequence[dict[str, Any]]) -> Diagnosis:
    """The run neither ended nor was ended in order: it still runs, or it was killed."""
    at = next((step["name"] for step in reversed(steps) if step["status"] == "running"), None)
    where = f"while {at} was running" if at else "between two steps" if steps else "before its first step"
    return diagnose("RUN_UNFINISHED", where=where)
