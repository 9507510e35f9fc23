"""What the doctor says about one thing, and what follows from all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from attrs import define

State = Literal["ok", "warning", "missing", "error"]
Purpose = Literal["timeline", "counters"]

TIMELINE: tuple[Purpose, ...] = ("timeline",)
COUNTERS: tuple[Purpose, ...] = ("counters",)
BOTH: tuple[Purpose, ...] = ("timeline", "counters")


@define(frozen=True)
class Check:
    """One line of the doctor."""

    name: str
    state: State
    found: str
    why_it_matters: str = ""
    fix_command: str = ""  # what to type; a sentence where no command can help
    blocks: tuple[Purpose, ...] = ()  # what cannot work while this is so


@define(frozen=True)
class Readiness:
    """Whether a timeline and counters could be taken, and if not, why."""

    timeline: bool
    counters: bool
    summary: str


def readiness(checks: Sequence[Check], *, tried: bool) -> Readiness:
    """What would work. `tried`: both profilers were really run on a kernel."""
    blockers = {purpose: [c for c in checks if purpose in c.blocks] for purpose in BOTH}
    timeline, counters = (not blockers[purpose] for purpose in BOTH)
    if timeline and counters:
        how = "" if tried else " (judging by what was found; nothing was run)"
        return Readiness(True, True, f"Profiling works here: timeline and counters{how}.")
    if not timeline and not counters:
        both = [c for c in blockers["timeline"] if c in blockers["counters"]]
        rest = [c for purpose in BOTH for c in blockers[purpose] if c not in both]
        return Readiness(False, False, f"Profiling does not work here: {_reasons([*both, *rest])}.")
    works, fails = (
        ("the timeline does", "Counters do") if timeline else ("counters (`ncu` by hand) do", "The timeline does"),
        blockers["counters" if timeline else "timeline"],
    )
    return Readiness(timeline, counters, f"{works[1]} not work here: {_reasons(fails)}; {works[0]}.")


def _reasons(checks: Sequence[Check]) -> str:
    # What stands before the details.
    short = {check: re.split(r"[:;.,] |\.$", check.found, maxsplit=1)[0] for check in checks}
    return "; ".join(f"{check.name}: {found}" for check, found in short.items())
