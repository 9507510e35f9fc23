"""Whether two sides can be compared at all: the same GPU, the same input, the same command."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from attrs import define

from llm_perf_opt.comparing.side import RECORDERS, Side
from llm_perf_opt.metrics.quantity import percent
from llm_perf_opt.regions.names import visible

# Words in the options of programs that say how much there is to do, and those that say otherwise.
_AMOUNT = re.compile(r"batch|bs|seq|seqlen|len|length|tokens|inputs?|prompts?|images?|samples|dataset|requests")
_OTHER = re.compile(r"parallel|workers|d?type|kernel|backend|dir|path|root")
CONTENDED = 0.1  # what took that much longer for waiting for a CPU (a logarithm) is not slower by itself
_CROWDED = 0.25  # of the time that threads could run
_LEAST = 0.01
_OPTION = re.compile(r"--?[A-Za-z]")
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")  # as Hydra takes them: infer.batch_size=8


@define(frozen=True)
class Conditions:
    """What else differed while the times were taken."""

    clocks: tuple[float | None, float | None] = (None, None)  # of the SMs
    waited: float = 0.0  # how much longer its threads took on the new side, of waiting for a CPU, as a logarithm
    recorders: str = ""  # why the time that the GPU waits is not comparable in recordings; "": it is
    crowded: bool = False  # on both sides, threads waited for a CPU for so long that one run says little

    @staticmethod
    def of(base: Side, new: Side) -> Conditions:
        names = [" and ".join(RECORDERS.get(kind, kind) for kind in side.recorders) for side in (base, new)]
        differ = all(names) and not set(base.recorders) & set(new.recorders)
        why = f"{names[0]} recorded one side, {names[1]} the other, and each slows the host in its own way"
        crowded = min(base.cpu_wait or 0.0, new.cpu_wait or 0.0) >= _CROWDED
        return Conditions(
            (base.clock_mhz, new.clock_mhz), waited_more(base, new), why if differ else "", crowded=crowded
        )


def not_alike(base: Side, new: Side) -> tuple[list[str], list[str]]:
    """Why they cannot be compared, and what else is to be known."""
    barred, notes = [], []
    if base.gpus and new.gpus and set(base.gpus) != set(new.gpus):
        barred.append(f"other GPU: {_listed(base.gpus)} before, {_listed(new.gpus)} now")
    if base.inputs and new.inputs and base.inputs != new.inputs:
        barred.append(f"other input: {visible(base.inputs, 80)} before, {visible(new.inputs, 80)} now")
    for old, now in _other_words(base.command, new.command):
        text = f"{visible(old or '(nothing)', 60)} before, {visible(now or '(nothing)', 60)} now"
        option = (now or old).partition("=")[0].partition(" ")[0]
        is_setting = _SETTING.match(old) and _SETTING.match(now)
        if (_OPTION.match(option) or is_setting) and _says_how_much(option):
            barred.append(f"other input: {text}")
        else:
            notes.append(f"The command differs: {text}.")
    if base.clock_mhz and new.clock_mhz and abs(base.clock_mhz / new.clock_mhz - 1) > 0.01:
        notes.append(f"The SM clock was {base.clock_mhz:.0f} MHz before and is {new.clock_mhz:.0f} MHz now.")
    if abs(more := waited_more(base, new)) >= CONTENDED:
        busy, idle = (new, base) if more > 0 else (base, new)
        notes.append(
            f"The threads of {visible(busy.label, 60)} waited for a CPU for {_percent(busy)} of the time in which they were ready, "
            f"those of {visible(idle.label, 60)} for {_percent(idle)}: other programs, or more threads than CPUs."
        )
    return barred, notes


def waited_more(base: Side, new: Side) -> float:
    """By which factor waiting for a CPU made the threads of `new` take longer, as a logarithm; 0 where nobody knows."""
    if base.cpu_wait is None or new.cpu_wait is None:
        return 0.0
    return math.log(max(1 - base.cpu_wait, _LEAST) / max(1 - new.cpu_wait, _LEAST))


def _percent(side: Side) -> str:
    return percent(side.cpu_wait or 0.0, ".0")


def _says_how_much(option: str) -> bool:
    words = re.split(r"[-_.]", option.lower().strip("-"))
    return any(map(_AMOUNT.fullmatch, words)) and not any(map(_OTHER.fullmatch, words))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(visible(name, 60) for name in names[:3])


def _other_words(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """Options that differ, each with its value; other words by their place."""
    if not (before and after):
        return []
    old, now = _options(before), _options(after)
    changed = [(old.get(name, ""), now.get(name, "")) for name in dict.fromkeys([*old, *now])]
    return [(one, other) for one, other in changed if one != other][:8]


def _options(command: Sequence[str]) -> dict[str, str]:
    """By name of an option, or number of a word: as it was typed."""
    found: dict[str, str] = {}
    at, plain = 0, 0
    while at < len(command):
        word = command[at]
        name, equals, _ = word.partition("=")
        if _SETTING.match(word):
            found[name] = word
        elif not _OPTION.match(word):
            found[f"word {plain}"] = word
            plain += 1
        elif equals or at + 1 >= len(command) or _OPTION.match(command[at + 1]):
            found[name] = word
        else:
            found[name] = f"{word} {command[at + 1]}"
            at += 1
        at += 1
    return found
