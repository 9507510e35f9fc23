"""What the annotated processes noted, and the message for a user whose program was not annotated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, define

from llm_perf_opt.inject.capture_windows import Named
from llm_perf_opt.untrusted import parse_json, read_text

RangesSeen = Mapping[int, Mapping[Named, int]]  # by process id: how many ranges of each name were opened


@define
class Annotated:
    """What became of the annotation of a program."""

    processes: int = 0  # that imported torch with the annotation in place
    stages: dict[str, int] = Factory(dict)  # how often each stage was seen, in processes that ended by themselves
    troubles: list[str] = Factory(list)  # of the annotation
    unwatched: list[str] = Factory(list)  # why ranges of the program cannot be counted or acted on
    ended: int = 0  # processes that ended by themselves
    ranges: dict[int, dict[Named, int]] = Factory(dict)  # of each process, how many ranges it opened, by name
    ranks: dict[int, int] = Factory(dict)  # of each process, its rank in its job
    windows: int = 0  # ranges the profiler was switched on around, in processes that had all of theirs
    ended_before: str = ""  # the range before which a process was ended on purpose, because all samples were in

    @property
    def message(self) -> str:
        """Why nothing was annotated, where that is not among the troubles; empty where something was."""
        if self.processes == 0 and not self.troubles:
            return (
                "No Python process of this program imported PyTorch with the annotation in place: it uses no PyTorch, "
                "or starts Python without PYTHONPATH (python -I, -E or -S, sudo, a container, an environment of its own)."
            )
        if self.processes and self.ended == self.processes and not self.stages:
            return (
                "PyTorch was imported, but no model was called: only calls of modules are annotated, as in model(x), "
                "not model.forward(x) or operations on tensors."
            )
        return ""


def read_log(path: Path) -> Annotated:
    """Read the log of a run; a missing file is one that no process wrote to."""
    found = Annotated()
    try:
        text = read_text(path, errors="replace")
    except (OSError, ValueError):  # nobody wrote one, or it is nothing of ours
        text = ""
    for line in text.splitlines():
        try:
            note = parse_json(line)
        except ValueError:  # a process was killed while it wrote
            continue
        event = note.get("event") if isinstance(note, dict) else None
        if event == "torch":
            found.processes += 1
        elif event == "place":
            if isinstance(note.get("pid"), int) and isinstance(note.get("rank"), int):
                found.ranks[note["pid"]] = note["rank"]
        elif event == "windows":
            windows = note.get("windows", 0)
            found.windows += windows if isinstance(windows, int) else 0
            if "ended" in note:  # a process that would not end takes it back
                before = str(note.get("before", "")).removeprefix("llm-perf:")  # a marker range
                found.ended_before = before if note["ended"] else ""
        elif event == "trouble":
            troubles = found.unwatched if note.get("of") == "ranges" else found.troubles
            if (message := str(note.get("message", ""))) not in troubles:
                troubles.append(message)
        elif event == "end":
            found.ended += 1
            stages = note.get("stages")
            for name, count in stages.items() if isinstance(stages, dict) else ():
                if isinstance(count, int):
                    found.stages[name] = found.stages.get(name, 0) + count
            if ranges := _ranges(note.get("ranges")):
                found.ranges[note.get("pid") if isinstance(note.get("pid"), int) else 0] = ranges
    return found


def _ranges(noted: Any) -> dict[Named, int]:
    found: dict[Named, int] = {}
    for row in noted if isinstance(noted, list) else ():
        match row:
            case [str(domain), str(name), int(count)]:
                found[domain, name] = count
    return found
