"""From the causes of idle time to verdict and fixes: which rule each belongs to, and what of the waiting it would win.

The table of causes is in `idle.toml`, the words of their fixes in `analysis/rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from attrs import define, evolve

from llm_perf_opt.analysis.verdicts.rules import UNKNOWN, Facts
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.package_data import read_toml
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.fixes import IdleLine
from llm_perf_opt.regions.idle import IdleCause, IdleTime
from llm_perf_opt.regions.model import Evidence, Verdict
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.operator_names import is_operator

_IDLE = "The GPU sits idle for {idle_share} of the {basis} ({idle} of {wall}), {part}"
_ALL = 0.995  # of the idle time, from which on a cause has all of it
_NO_RULE = "none: "  # causes that have none are told apart
_NAMES = 3  # of what the host was in, in a text
_TELLING_SHARE = 0.5  # of the idle time, from which on gaps of a size are mentioned
_SIZE_WORDS = {10_000_000: "10 ms", 1_000_000: "1 ms", 100_000: "100 µs"}
# What a profiler adds to: idle time that the program alone does not have goes off this first, and off short gaps.
_DISTURBED = _LAUNCH = "launch"
_COPY = "copy"
_ENGINE, _ENGINE_WORK = "engine", ("schedule", "update", "sample")  # ranges of the annotation
# Where there is one instance, nothing tells how much others differ, nor how much of it stays: from half of it to all.
ALONE = (0.5, 1.0)
# Of the waiting that was predicted, mending the programs of benchmarks/rules gained so much on an H200: some of it stays,
# and some that is no gap goes with it.
_GAINED = (0.9, 1.25)
_HOST_CODE = ("data", "python", "thread", "unseen", "wait")


@define(frozen=True)
class CauseWords:
    """One cause of idle time."""

    rule: str
    bound: str
    title: str
    text: str  # how its first sentence ends; all of it, where it begins with a capital
    without_graph: str | None = None
    between_graphs: str | None = None


@define(frozen=True)
class IdlePart:
    """Idle time with one rule."""

    rule: str
    time_ns: float
    what: str  # in words
    causes: Sequence[IdleCause] = ()
    lines: Sequence[IdleLine] = ()  # where the host was meanwhile, as far as that is known
    spread: tuple[float, float] | None = None  # see `IdleTime.spread`

    def of(self, time_ns: float) -> IdlePart:
        """Of so much of it."""
        scale = time_ns / self.time_ns if self.time_ns else 0.0
        lines = [evolve(line, time_ns=round(line.time_ns * scale)) for line in self.lines]
        return evolve(self, time_ns=time_ns, lines=lines)

    @property
    def interval(self) -> tuple[float, float]:
        """That mending it would gain, in ns of all instances."""
        low, high = self.spread or ALONE
        return self.time_ns * low * _GAINED[0], self.time_ns * high * _GAINED[1]

    @property
    def texts(self) -> str:
        """The entry of its words among the fixes."""
        return texts_of(self.rule)


@cache
def idle_words() -> Mapping[str, CauseWords]:
    return {name: CauseWords(**of) for name, of in read_toml(__package__, "idle.toml")["cause"].items()}


def by_engine(idle: IdleTime, region: str) -> IdleTime:
    """Of a server: what its engine does between steps is a cause of its own, in the ranges for it whatever it is.

    Small copies that it launches there, too: no graph of the model's step takes them in.
    """
    inside = region in _ENGINE_WORK

    def cause_of(cause: str, what: str) -> str:
        return _ENGINE if what in _ENGINE_WORK or (inside and cause in (_LAUNCH, *_HOST_CODE)) else cause

    causes = [evolve(one, cause=cause_of(one.cause, one.what)) for one in idle.causes]
    lines = [evolve(one, cause=cause_of(one.cause, "")) for one in idle.lines]
    return evolve(idle, causes=causes, lines=lines)


def within_the_gpu(idle: IdleTime) -> IdleTime:
    """Of a region whose copies stay on the GPU: calls that copy are launches like others."""
    causes = [evolve(one, cause=_LAUNCH if one.cause == _COPY else one.cause) for one in idle.causes]
    lines = [evolve(one, cause=_LAUNCH if one.cause == _COPY else one.cause) for one in idle.lines]
    return evolve(idle, causes=causes, lines=lines)


def undisturbed(idle: IdleTime, idle_ns: float) -> IdleTime:
    """The idle time of a recording as it is without a profiler, of which `idle_ns` are known; as it was where equal.

    All that is said about a region's waiting is said of this one, so that its numbers go together. Where the program
    waits longer by itself than in the recording, the causes explain a part of it only.
    """
    by_cause = {cause: float(time) for cause, time in idle.by_cause().items()}
    left = _fitted(by_cause, idle_ns)
    scale = {cause: left[cause] / time if time else 1.0 for cause, time in by_cause.items()}
    sizes, surplus = [], sum(by_cause.values()) - sum(left.values())
    for size in reversed(idle.sizes):  # the shortest gaps first
        now = max(size.time_ns - surplus, 0.0)
        surplus -= size.time_ns - now
        sizes.append(evolve(size, time_ns=round(now), share=now / idle_ns if idle_ns else 0.0))
    causes = [evolve(one, time_ns=round(one.time_ns * scale[one.cause])) for one in idle.causes]
    lines = [evolve(line, time_ns=round(line.time_ns * scale.get(line.cause, 1.0))) for line in idle.lines]
    return IdleTime(
        round(idle_ns),
        idle.gaps,
        sizes[::-1],
        sorted((one for one in causes if one.time_ns), key=lambda one: -one.time_ns),
        sorted((line for line in lines if line.time_ns), key=lambda line: -line.time_ns),
        idle.spread,
    )


def idle_parts(idle: IdleTime, graphable: bool, graphs: bool) -> list[IdlePart]:
    """The waiting of a region by rule, most first.

    `graphable`: a CUDA graph would save launches. `graphs`: there are some already.
    """
    groups = _by_rule(idle, graphable, graphs)
    rules = {cause: _rule(cause, graphable, graphs) for cause in {line.cause for line in idle.lines}}
    found = [
        IdlePart(
            rule,
            float(sum(one.time_ns for one in group)),
            _what(group),
            group,
            [line for line in idle.lines if rules[line.cause] == rule],
            _spread(idle, group),
        )
        for rule, group in groups.items()
        if not rule.startswith(_NO_RULE)
    ]
    return sorted(found, key=lambda part: -part.time_ns)


def _spread(idle: IdleTime, group: Sequence[IdleCause]) -> tuple[float, float] | None:
    """Of several causes together, as if all were long in the same instances; None where there is one instance."""
    whole = idle.spread.get("")
    time = sum(one.time_ns for one in group)
    if whole is None or not time:
        return None
    edges = [(one.time_ns, idle.spread.get(one.cause, whole)) for one in group]  # of a renamed one: of all idle time
    low, high = (sum(weight * edge[end] for weight, edge in edges) / time for end in (0, 1))
    return low, high


def _by_rule(idle: IdleTime, graphable: bool, graphs: bool) -> dict[str, list[IdleCause]]:
    groups: dict[str, list[IdleCause]] = {}
    for one in idle.causes:
        groups.setdefault(_rule(one.cause, graphable, graphs), []).append(one)
    return groups


def _rule(cause: str, graphable: bool, graphs: bool) -> str:
    own = _cause(cause, graphable, graphs)
    return idle_words()[own].rule or _NO_RULE + own


def texts_of(rule: str) -> str:
    """Waiting in a call that copies has other words than the copies themselves."""
    return f"{rule}.waiting" if rule == "copy.host" else rule


def _cause(cause: str, graphable: bool, graphs: bool) -> str:
    """The cause whose words and fix hold for another one, here."""
    words = idle_words()[cause]
    instead = words.between_graphs if graphs else None if graphable else words.without_graph
    return cause if instead is None else instead


def _fitted(times: dict[str, float], to: float) -> dict[str, float]:
    """Times that add up to no more than `to`."""
    times = dict(times)
    if (surplus := sum(times.values()) - to) > 0 and _DISTURBED in times:
        times[_DISTURBED] = max(times[_DISTURBED] - surplus, 0.0)
    whole = sum(times.values())
    return {cause: time * to / whole for cause, time in times.items()} if whole > to else times


def _what(group: Sequence[IdleCause]) -> str:
    """`enumerate(DataLoader) 354 ms in 6 gaps, 12 ms in 40 other gaps`; `train.py:33 step 354 ms in 6 gaps, 12 ms elsewhere`."""
    named = [one for one in group if one.what][:_NAMES]
    words = [f"{_name(one.what)} {shown(nanoseconds(one.time_ns))} in {_gaps(one.gaps)}" for one in named]
    others = [one for one in group if one not in named]
    if others:
        time = shown(nanoseconds(sum(one.time_ns for one in others)))
        # Lines and operators share gaps among them: those of the others are no further ones.
        divided = any(parse_place(one.what) or is_operator(one.what) for one in named)
        where = "elsewhere" if divided else f"in {_gaps(sum(one.gaps for one in others), 'other ' if named else '')}"
        words.append(f"{time} {where}")
    return ", ".join(words)


def _name(what: str) -> str:
    """A line as everywhere else, `train.py:33 step`."""
    place = parse_place(what)
    return visible(what if place is None else f"{place.file}:{place.line} {place.function}", 60)


def _gaps(count: int, which: str = "") -> str:
    return f"{count:,} {which}gap{'' if count == 1 else 's'}"


def with_cause(
    found: Verdict, idle: IdleTime, facts: Facts, graphable: bool, graphs: bool, action: Callable[[str], str]
) -> Verdict:
    """A verdict about waiting, by what has the largest part of it; as it was where nothing is known.

    `action`: what to do about a rule.
    """
    groups = _by_rule(idle, graphable, graphs)
    if not idle.total_ns or not groups:
        return found
    rule, group = max(groups.items(), key=lambda item: sum(one.time_ns for one in item[1]))
    time = sum(one.time_ns for one in group)
    main, share = idle_words()[_cause(group[0].cause, graphable, graphs)], time / idle.total_ns
    launches = facts.numbers.get("launches") or 1.0
    part = "" if share >= _ALL else f"{100 * share:.0f} % of that "
    words = facts.words | {"share": f"{100 * share:.0f} %", "part": part, "what": _what(group)}
    words["each"] = shown(nanoseconds(time / launches))
    return evolve(
        found,
        bound=main.bound,
        title=main.title,
        text=(main.text if main.text[0].isupper() else f"{_IDLE}{main.text}").format_map(words) + _sizes(idle),
        evidence=[
            *found.evidence,
            Evidence(f"{group[0].cause} {words['share']} of the idle time", "cause_share", share),
        ],
        advice=found.advice if rule.startswith(_NO_RULE) else _sentence(action(texts_of(rule))),
        confidence="low" if main.bound == UNKNOWN else found.confidence,
    )


def _sizes(idle: IdleTime) -> str:
    """What long gaps have of the idle time, where that tells something."""
    gaps = time = 0
    for size in idle.sizes:
        gaps, time = gaps + size.gaps, time + size.time_ns
        # Of a gap that reaches beyond the region, it has a part.
        inside = time >= gaps * size.at_least_ns
        if inside and size.at_least_ns in _SIZE_WORDS and time >= _TELLING_SHARE * idle.total_ns:
            share = 100 * time / idle.total_ns
            return f" {share:.0f} % of it lies in {_gaps(gaps)} of {_SIZE_WORDS[size.at_least_ns]} or more."
    return ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
