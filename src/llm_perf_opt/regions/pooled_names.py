"""Numbered names that mean one thing: `Batch 0` … `Batch 58` are 59 instances of `Batch *`.

Programs and libraries write into the names of ranges what a person would not name a stage by: the number of the
batch, PyTorch's `seq = 7, op_id = 314612`, the size of a serving step. Such ranges become instances of one region,
whose name has a star for each number that varies. A number that tells things apart (`layer0`, `block.15`, `rank 3`)
stays. The decision is made on all names of a recording that differ in nothing but numbers:

- PyTorch's arguments behind an operator's name, and the numbers of a serving step that our annotation writes, are
  never part of a name.
- A number behind a word that counts (batch, step, epoch, request …) or measures (`bs=64`, context, tokens …) is
  pooled; one behind a word that names a thing is kept, but in what a library opens for every layer (`FSDP::`).
- Behind any other word it is pooled with a counting one beside it, or where there are many such names and each
  occurs once: things come back, counters go on. Three are many where it is said what is done (`execute_model_5`).
- Steps of a server of different phases are never one region, however alike their names.
- Where a name has several sizes, zero says that there is nothing of a kind: vLLM's `context_0(0)_generation_64(64)`
  is a decode step, and no instance of a prefill.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from attrs import Factory, define, evolve

from llm_perf_opt.regions.columns import Action, CounterSet, NumberRange, PooledName, Recording, Timeline
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.operator_names import MODULE, without_arguments
from llm_perf_opt.regions.patterns import RegionFilter, coded
from llm_perf_opt.regions.step_numbers import phase_of, without_numbers

STAR = "*"
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_LAST_WORD = re.compile(r"([A-Za-z]*)([^A-Za-z]*)$")
_LAST_HUMP = re.compile(r"[A-Z]?[a-z]+$|[A-Z]+$")  # ProfilerStep: Step
_COUNTING_WORDS = """
    attempt batch call chunk epoch episode event frame id idx image img index it item iter iteration itr job loop
    message microbatch minibatch msg number op page prompt query req request round run sample seq sequence step steps
    task tick token trial turn
"""
_MEASURING_WORDS = "bs bsz cached context decode extend generation len length new prefill size tok tokens toks"
_THING_WORDS = """
    blk block blocks bn case config conv cuda decoder device dim dp encoder ep experiment expert experts fc gpu group
    h head layer layers level linear model module node norm part pass phase pp process rank shard stage stream test
    thread tp version worker
"""
_COUNTING, _MEASURING, _THINGS = (
    frozenset(words.split()) for words in (_COUNTING_WORDS, _MEASURING_WORDS, _THING_WORDS)
)
_BOOKKEEPING = ("FSDP::",)  # ranges that a library opens for each layer: nobody asks about one of them
_RUNS = re.compile(r"(call|execute|forward|infer|invoke|predict|run)[ _-]?(model|module)[^A-Za-z0-9]*$", re.IGNORECASE)
_COUNT, _MEASURE, _THING, _SEPARATE, _GLUED, _RUN = range(6)
_NEAR = 64  # characters before a number in which its word is looked for
_MOST_NUMBERS = 32  # a name with more is no name that somebody counts in
_LONGEST = 18  # digits of a number that is still one
# No `+`, which means something to ncu itself.
_DIGITS, _HEX_DIGITS = "[0-9][0-9]*", "(0x)?[0-9a-fA-F][0-9a-fA-F]*"
# Names that differ in a number behind a word that says nothing, or behind what is done with a thing.
_MANY = {_SEPARATE: 8, _GLUED: 128, _RUN: 3}

R = TypeVar("R", Timeline, CounterSet, Recording)
_Slots = tuple[tuple[int, str], ...]  # what each number of a name is, and how it is written
_Form = tuple[str, ...]  # a name without its numbers, but for those that tell things apart


@define(eq=False)
class Pools:
    """Which names of some recordings stand for one."""

    pooled: dict[str, PooledName] = Factory(dict)  # new name -> what it stands for
    _names: dict[str, str] = Factory(dict)  # recorded name -> new name
    _forms: dict[_Form, str] = Factory(dict)  # form -> new name

    @staticmethod
    def of(counts: Counter[str], processes: int, keep: Callable[[str], bool]) -> Pools:
        """`counts`: how often each name was recorded in all processes; `keep`: names that stay as they are."""
        found = Pools()
        found._names = {name: name for name in counts if keep(name)}
        plain = {name: without_numbers(without_arguments(name)) for name in counts if name not in found._names}
        own: Counter[str] = Counter()
        for name, stripped in plain.items():
            own[stripped] += counts[name]
        groups: dict[_Form, list[str]] = {}
        for stripped in own:
            groups.setdefault(_form(stripped), []).append(stripped)
        groups.pop((), None)
        new = {stripped: stripped for stripped in own}
        for form, names in groups.items():
            if len(names) > 1 and (pooled := _pooled(names, own, processes)):
                found._forms[form], found.pooled[pooled[0]] = pooled
                new |= dict.fromkeys(names, pooled[0])
        for name, stripped in plain.items():
            found._names[name] = new[stripped]
            if new[stripped] == stripped != name:
                found.pooled.setdefault(stripped, PooledName(f"{coded(stripped)}({coded(', ')}.*)?"))
        return found

    def name(self, recorded: str) -> str:
        """The name that a recorded one stands under; also one that only another recording of the program has."""
        new = self._names.get(recorded)
        if new is None and (new := self._forms.get(_form(recorded))) is not None:
            new = new if re.fullmatch(self.pooled[new].expression, recorded) else None
        return recorded if new is None else new

    def applied(self, recording: R) -> R:
        """The recording with those names."""
        if not self.pooled:
            return recording
        if isinstance(recording, CounterSet):
            return evolve(recording, actions=[self._renamed(a) for a in recording.actions], pools=self.pooled)
        ranges = recording.ranges
        strings, numbers = list(recording.strings), np.arange(len(recording.strings), dtype=np.int32)
        known: dict[str, int] = {}
        for number in distinct(ranges.name).tolist():
            new = self.name(strings[number])
            if new != strings[number]:
                numbers[number] = known.setdefault(new, len(known) + len(recording.strings))
        if not known:
            return recording
        strings += known
        return evolve(
            recording,
            strings=strings,
            ranges=evolve(ranges, name=numbers[ranges.name], recorded=ranges.recorded_name),
            pools=recording.pools | self.pooled,
        )

    def _renamed(self, action: Action) -> Action:
        stacks = {domain: [self.name(name) for name in names] for domain, names in action.push_pop.items()}
        open_ranges = {domain: [self.name(name) for name in names] for domain, names in action.start_end.items()}
        return evolve(action, push_pop=stacks, start_end=open_ranges)


def find_pools(recordings: Iterable[Recording], chosen: RegionFilter) -> Pools:
    """The pools of recordings of one program. A numbered range that a pattern asks for by its number stays."""
    counts: Counter[str] = Counter()
    processes = 1
    for recording in recordings:
        if isinstance(recording, Timeline):
            used, times = np.unique(recording.ranges.name, return_counts=True)
            processes = max(processes, len(recording.processes))
            for number, count in zip(used.tolist(), times.tolist(), strict=True):
                counts[recording.strings[number]] += count
        else:
            # How often a range was opened is not in the results: as if all came back.
            stacks = [s for a in recording.actions for s in (*a.push_pop.values(), *a.start_end.values())]
            counts.update({name: 2 for stack in stacks for name in stack})
    return Pools.of(counts, processes, chosen.asks_for_number)


def _kind(before: str) -> int:
    """What a number is, by the text before it."""
    found = _LAST_WORD.search(before[-_NEAR:])
    word, between = found.groups() if found else ("", "")
    hump = _LAST_HUMP.search(word)
    last = hump[0].lower() if hump else word.lower()
    if "=" in between or last in _MEASURING:
        return _MEASURE
    if last in _COUNTING:
        return _COUNT
    if last in _THINGS:
        return _RUN if _RUNS.search(before[-_NEAR:]) else _THING
    return _SEPARATE if between or not word else _GLUED


def _slots(name: str) -> _Slots:
    return tuple((_kind(name[: found.start()]), found[0]) for found in _NUMBER.finditer(name))


def _form(name: str) -> _Form:
    """What names have in common that may be pooled; empty where nothing of this one can be."""
    if not _NUMBER.search(name) or name.startswith(MODULE):
        return ()
    slots = _slots(name) if len(_NUMBER.findall(name)) <= _MOST_NUMBERS else ()
    things = not name.startswith(_BOOKKEEPING)
    sizes = sum(kind == _MEASURE for kind, _ in slots) > 1
    kept = [(things and kind == _THING) or (sizes and kind == _MEASURE and text == "0") for kind, text in slots]
    fixed = [text if keeps else "" for (_, text), keeps in zip(slots, kept, strict=True)]
    return () if all(fixed) else (_NUMBER.sub("\0", name), *fixed, phase_of(name))


def _pooled(names: list[str], counts: Counter[str], processes: int) -> tuple[str, PooledName] | None:
    """The name for names of one form, if they are to have one."""
    slots = [_slots(name) for name in names]
    varying = [at for at in range(len(slots[0])) if len({found[at][1] for found in slots}) > 1]
    kinds = {slots[0][at][0] for at in varying}
    if not kinds & {_COUNT, _MEASURE, _THING}:
        many = all(len(names) >= _MANY[kind] for kind in kinds)
        if not many or any(counts[name] > processes for name in names):
            return None
    texts = _NUMBER.split(names[0])
    name, expression = texts[0], coded(texts[0])
    numbers = []
    for at, text in enumerate(texts[1:]):
        written = [found[at][1] for found in slots]
        if at in varying:
            numbers.append(_range_of(written, [counts[own] for own in names]))
            expression += _HEX_DIGITS if any(map(_is_hex, written)) else _DIGITS
        else:
            expression += written[0]
        name += (STAR if at in varying else written[0]) + text
        expression += coded(text)
    return name, PooledName(expression, numbers)


def _range_of(written: list[str], counts: list[int]) -> NumberRange:
    values = [int(text[: _LONGEST - 2], 16) if _is_hex(text) else int(text[:_LONGEST]) for text in written]
    mean = sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)
    return NumberRange(min(values), max(values), mean)


def _is_hex(text: str) -> bool:
    return text[:2] in ("0x", "0X")
