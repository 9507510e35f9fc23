"""A region's kernels by the line of the program that launches them, with the work the counters saw there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import Factory, define, evolve

from llm_perf_opt.analysis.code_lines import LaunchedFrom
from llm_perf_opt.analysis.verdicts.breakdown import amount
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.fixes import CodeLine, IdleLine, KernelSource, LineRecord
from llm_perf_opt.regions.model import SignatureRecord
from llm_perf_opt.regions.names import short_kernel_name

MOST_LINES = 50  # listed of a region
_NAMES = 3
_Key = tuple[str, tuple[int, ...], tuple[int, ...]]


@define
class _Line:
    calls: float = 0.0
    time: float = 0.0
    flops: float = 0.0
    dram: float = 0.0
    analysed: float = 0.0  # ns
    at_roof: float = 0.0
    counted: set[str] = Factory(set)
    kernels: dict[str, float] = Factory(dict)
    operators: dict[str, float] = Factory(dict)
    idle: int = 0


@define(frozen=True)
class _Each:
    """What one launch of a kind does."""

    time_ns: float
    flops: float | None
    dram: float | None
    at_roof: float | None  # part of its time


def line_records(
    launched: Sequence[LaunchedFrom], roofed: Roofed, idle: Iterable[IdleLine], callers: Mapping[Place, Place]
) -> tuple[list[LineRecord], float | None]:
    """The lines that take most time on the GPU or leave it waiting, and the part of the kernel time they know of.

    `callers`: of lines in libraries, the user's own that leads there.
    """
    each, found = _each(roofed) if launched else {}, dict[Place, _Line]()
    whole = sum(one.time_ns for one in launched)
    for one in launched:
        if one.place is not None:
            _add(found.setdefault(one.place, _Line()), one, each)
    for waited in idle:
        found.setdefault(Place(waited.file, waited.line, waited.function), _Line()).idle += waited.time_ns
    known = sum(line.time for line in found.values())
    ordered = sorted(found.items(), key=lambda item: -(item[1].time + item[1].idle))
    records = [_record(place, line, whole, callers.get(place)) for place, line in ordered[:MOST_LINES]]
    return records, known / whole if whole and records else None


def _add(line: _Line, one: LaunchedFrom, each: dict[_Key, list[_Each]]) -> None:
    line.calls += one.calls
    line.time += one.time_ns
    short = short_kernel_name(one.signature.shown)
    line.kernels[short] = line.kernels.get(short, 0.0) + one.time_ns
    if one.operator:
        line.operators[one.operator] = line.operators.get(one.operator, 0.0) + one.time_ns
    kinds = each.get((one.signature.shown, one.signature.grid or (), one.signature.block or ()))
    if kinds is None or not one.calls:
        return
    work = _at(kinds, one.time_ns / one.calls)
    for what, value in (("flops", work.flops), ("dram", work.dram)):
        if value is not None:
            line.counted.add(what)
            setattr(line, what, getattr(line, what) + value * one.calls)
    if work.at_roof is not None:
        line.analysed += one.time_ns
        line.at_roof += work.at_roof * one.time_ns


def _each(roofed: Roofed) -> dict[_Key, list[_Each]]:
    """Of each signature, its kinds: launches that do different work differ in how long they take."""
    launches = roofed.launches
    found: dict[_Key, list[_Each]] = {}
    for row, which in enumerate(launches.which.tolist()):
        kind, calls, time = launches.kinds[which], int(launches.calls[row]), float(launches.time_ns[row])
        at_roof = float(roofed.at_roof_ns[row]) / time if time and roofed.analysed[row] else None
        each = _Each(time / max(calls, 1), amount(kind, "flops"), amount(kind, "dram"), at_roof)
        found.setdefault((kind.kernel_name, tuple(kind.grid), tuple(kind.block)), []).append(each)
    return {key: sorted(kinds, key=lambda each: each.time_ns) for key, kinds in found.items()}


def _at(kinds: list[_Each], time_ns: float) -> _Each:
    """A launch that takes this long in the mean: of the kind that does, or some of the one below and some of the next."""
    above = next((n for n, kind in enumerate(kinds) if kind.time_ns >= time_ns), len(kinds) - 1)
    below = max(above - 1, 0)
    between = kinds[above].time_ns - kinds[below].time_ns
    part = min(max((time_ns - kinds[below].time_ns) / between, 0.0), 1.0) if between else 1.0

    def mixed(what: str) -> float | None:
        pair: list[float | None] = [getattr(kinds[below], what), getattr(kinds[above], what)]
        one, other = pair
        if one is None or other is None:
            return other if one is None else one
        return one + part * (other - one)

    return _Each(time_ns, mixed("flops"), mixed("dram"), mixed("at_roof"))


def _record(place: Place, line: _Line, whole: float, caller: Place | None) -> LineRecord:
    return LineRecord(
        file=place.file,
        line=place.line,
        function=place.function,
        calls=round(line.calls),
        time=nanoseconds(round(line.time)),
        share=line.time / whole if whole else None,
        kernels=_most(line.kernels),
        operators=_most(line.operators),
        flops=Quantity(line.flops, "FLOP") if "flops" in line.counted else None,
        dram=Quantity(line.dram, "B") if "dram" in line.counted else None,
        of_roof=line.at_roof / line.analysed if line.analysed else None,
        idle=nanoseconds(line.idle) if line.idle else None,
        called_from=None if caller is None else CodeLine(caller.file, caller.line, caller.function, None),
    )


def _most(times: dict[str, float]) -> list[str]:
    return sorted(times, key=lambda name: -times[name])[:_NAMES]


def with_lines(records: Sequence[SignatureRecord], launched: Sequence[LaunchedFrom]) -> list[SignatureRecord]:
    """Signatures with the operator and the lines that launch them."""
    alike: dict[_Key, list[LaunchedFrom]] = {}
    for one in launched:
        key = (one.signature.shown, one.signature.grid or (), one.signature.block or ())
        alike.setdefault(key, []).append(one)
    found = []
    for record in records:
        mine = alike.get((record.kernel_name, tuple(record.grid), tuple(record.block)), [])
        operator, lines = _launched_by(mine)
        found.append(evolve(record, operator=operator, lines=lines))
    return found


def kernel_sources(launched: Sequence[LaunchedFrom], most: int) -> list[KernelSource]:
    """The same of kernels by their names, those that take most time first."""
    alike: dict[str, list[LaunchedFrom]] = {}
    for one in launched:
        alike.setdefault(one.signature.shown, []).append(one)
    ordered = sorted(alike, key=lambda name: -sum(one.time_ns for one in alike[name]))[:most]
    sources = [KernelSource(name, *_launched_by(alike[name])) for name in ordered]
    return [source for source in sources if source.operator or source.lines]


def places_of_kernels(launched: Sequence[LaunchedFrom]) -> dict[str, dict[Place, float]]:
    """By the names of kernels, the lines that launch them, and the part of its time that each has."""
    times: dict[str, float] = {}
    found: dict[str, dict[Place, float]] = {}
    for one in launched:
        times[one.signature.shown] = times.get(one.signature.shown, 0.0) + one.time_ns
        if one.place is not None:
            places = found.setdefault(one.signature.shown, {})
            places[one.place] = places.get(one.place, 0.0) + one.time_ns
    return {
        name: {place: time / times[name] for place, time in places.items()}
        for name, places in found.items()
        if times[name]
    }


def _launched_by(launches: Sequence[LaunchedFrom]) -> tuple[str, list[CodeLine]]:
    operators, lines = dict[str, float](), dict[Place, float]()
    for one in launches:
        if one.operator:
            operators[one.operator] = operators.get(one.operator, 0.0) + one.time_ns
        if one.place is not None:
            lines[one.place] = lines.get(one.place, 0.0) + one.time_ns
    places = sorted(lines, key=lambda place: -lines[place])[:_NAMES]
    return next(iter(_most(operators)), ""), [CodeLine(p.file, p.line, p.function, lines[p]) for p in places]
