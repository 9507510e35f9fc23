"""Which region of one side is which of the other, and which kernels do the work of which.

Regions are known by their path. One that was renamed, or moved below another range, is known by what it does. Kernels
are known by their signature, then by their name on another grid, then by their place in the order of launches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from attrs import evolve

from llm_perf_opt.comparing.comparison import GONE, GRID, NEW, ORDER, SIGNATURE, KernelPair
from llm_perf_opt.comparing.side import KernelUse, RegionSide, Side
from llm_perf_opt.regions.table import WHOLE

GRAPH = "graph"
_ALIKE = 0.6  # part of the GPU time in kernels that both have: enough for a region with another name
_ALIKE_BUT_FOR_NUMBERS = 0.2  # the same for `bs=4` and `bs=5`
_MOST_NAMELESS = 100  # regions below one parent whose partner is looked for by what they do
_AS_OFTEN = 1.2  # instances of one over those of the other
_AS_LONG = 2.0  # the same of the time, where there are no kernels to look at
_Group = tuple[list[KernelUse], list[KernelUse]]
RegionPair = tuple[RegionSide | None, RegionSide | None]


def match_regions(base: Side, new: Side) -> list[RegionPair]:
    """All regions: in the order of the new side, then those that are gone."""
    children = [_children(side) for side in (base, new)]
    found: dict[str, RegionSide] = {}  # key on the new side -> region of the base

    def descend(before: str | None, after: str | None) -> None:
        waiting = [(before, after)]
        while waiting:
            old, now = waiting.pop()
            for one, other in _pairs(children[0].get(old, []), children[1].get(now, [])):
                if other.key not in found:
                    found[other.key] = one
                    waiting.append((one.key, other.key))

    descend(None, None)
    # A range around everything, or one less: the same names at other places.
    used = {region.key for region in found.values()}
    for now in new.regions.values():
        if now.key not in found:
            same = [r for r in base.regions.values() if r.key not in used and r.path[-1:] == now.path[-1:]]
            if len(same) == 1 and _could_be(same[0], now, 0.0):
                found[now.key] = same[0]
                descend(same[0].key, now.key)
                used = {region.key for region in found.values()}
    matched: list[RegionPair] = [(found.get(key), region) for key, region in new.regions.items()]
    used = {region.key for region in found.values()}
    matched += [(region, None) for key, region in base.regions.items() if key not in used]
    return [pair for pair in matched if not (_is_left_out(pair[1], pair[0], base) or _is_left_out(*pair, new))]


def _is_left_out(region: RegionSide | None, partner: RegionSide | None, other: Side) -> bool:
    """It is no news that the other side does not have it: that holds no regions that light."""
    return region is not None and partner is None and region.weight_ns < _AS_LONG * other.left_out_ns


def partnerless(pairs: Sequence[RegionPair], place: int) -> tuple[float, list[RegionSide]]:
    """Of one side: the part of its time in regions that have no partner, nor any inside or around them; and these, the
    heaviest first."""
    mine = {r.key: r for pair in pairs if (r := pair[place]) is not None and r.key != WHOLE}  # that is around all
    partnered = {region.key for pair in pairs if (region := pair[place]) is not None and pair[1 - place] is not None}
    around: set[str | None] = set()  # of what both have
    below: dict[str | None, list[RegionSide]] = defaultdict(list)
    for region in mine.values():
        below[region.parent if region.parent in mine else None].append(region)
        parent = region.parent if region.key in partnered else None
        while parent in mine and parent not in around:
            around.add(parent)
            parent = mine[parent].parent
    alone, both, waiting = [], 0.0, below[None]
    while waiting:
        region = waiting.pop()
        if region.key in partnered:
            both += region.weight_ns
        elif region.key in around:
            waiting += below[region.key]
        else:
            alone.append(region)
    taken = sum(region.weight_ns for region in alone)
    return taken / ((taken + both) or 1.0), sorted(alone, key=lambda region: -region.weight_ns)


def _children(side: Side) -> dict[str | None, list[RegionSide]]:
    below: dict[str | None, list[RegionSide]] = defaultdict(list)
    for region in side.regions.values():
        below[region.parent if region.parent in side.regions else None].append(region)
    return below


def _pairs(before: Sequence[RegionSide], after: Sequence[RegionSide]) -> list[tuple[RegionSide, RegionSide]]:
    """Regions below one parent: by name, then by what they do."""
    by_name = {_own_name(region): region for region in before}
    found = [(by_name.pop(name), region) for region in after if (name := _own_name(region)) in by_name]
    left = {id(region): region for region in _heaviest(by_name.values())}
    taken = {id(region) for _, region in found}
    for region in _heaviest(region for region in after if id(region) not in taken):
        candidates = [(alikeness(one, region), one) for one in left.values() if _could_be(one, region)]
        if candidates:
            best = max(candidates, key=lambda pair: pair[0])[1]
            del left[id(best)]
            found.append((best, region))
    return found


def _heaviest(regions: Iterable[RegionSide]) -> list[RegionSide]:
    """Each is held against each: of very many without a partner, those that take most."""
    return sorted(regions, key=lambda region: -region.weight_ns)[:_MOST_NAMELESS]


def _own_name(region: RegionSide) -> str:
    """What tells it from its neighbours: the domain of an outermost one, too."""
    return region.key if region.parent is None else region.key.removeprefix(region.parent)


def _could_be(one: RegionSide, other: RegionSide, least: float = _ALIKE) -> bool:
    counts = sorted((max(one.instances, 1), max(other.instances, 1)))
    if counts[1] > _AS_OFTEN * counts[0]:
        return False
    if without_numbers(one.name) == without_numbers(other.name):
        least = min(least, _ALIKE_BUT_FOR_NUMBERS)
    if one.has_work and other.has_work and (one.kernels or other.kernels):
        return alikeness(one, other) >= least
    times = sorted(max(region.weight_ns, 1.0) for region in (one, other))
    return times[1] <= _AS_LONG * times[0] and (one.name == other.name or len(one.path) == len(other.path))


def without_numbers(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def alikeness(one: RegionSide, other: RegionSide) -> float:
    """Part of the GPU time that is in kernels of the same name on both sides."""
    shares = [region.time_shares() for region in (one, other)]
    return sum(min(share, shares[1].get(name, 0.0)) for name, share in shares[0].items())


def match_kernels(before: RegionSide, after: RegionSide) -> list[KernelPair]:
    """The GPU work of a region on both sides; each piece is in one pair, but what a side does not list is one piece."""
    pairs: list[KernelPair] = []
    one, other = ({use.signature: use for use in region.kernels} for region in (before, after))
    for signature in [s for s in one if s in other]:
        pairs.append(KernelPair((one.pop(signature),), (other.pop(signature),), SIGNATURE))
    old, now = _by_name(one.values()), _by_name(other.values())
    for name in [n for n in old if n in now]:
        # Several grids of one kernel are one: which of them became which nobody can tell.
        uses = old.pop(name), now.pop(name)
        told = all(use.grid for side in uses for use in side)  # a report knows no grids: then nothing is said of them
        pairs.append(KernelPair((_pooled(uses[0]),), (_pooled(uses[1]),), GRID if told else SIGNATURE))
    left_old, left_now = [u for uses in old.values() for u in uses], [u for uses in now.values() for u in uses]
    pairs += _unlisted(before, after, left_old, left_now)
    pairs += _graphs(left_old, left_now)
    pairs += _by_order(before, after, left_old, left_now)
    pairs += [KernelPair((use,), (), GONE) for use in left_old]
    return [*pairs, *(KernelPair((), (use,), NEW) for use in left_now)]


def _unlisted(
    before: RegionSide, after: RegionSide, left_old: list[KernelUse], left_now: list[KernelUse]
) -> list[KernelPair]:
    """Small kernels that one side has only as a sum are no news on the other; takes them out of both lists."""
    for short, long, listed in ((left_old, left_now, before), (left_now, left_old, after)):
        if not any(use.kind == "rest" for use in short) or any(use.kind == "rest" for use in long):
            continue
        least = min((use.time_ns for use in listed.kernels if use.kind == "kernel"), default=0.0)
        small = [use for use in long if use.time_ns <= least and use.kind != GRAPH]
        rest = [use for use in short if use.kind == "rest"]
        short[:] = [use for use in short if use.kind != "rest"]
        _drop(long, small)
        pooled = [evolve(rest[0], calls=sum(u.calls for u in small), time_ns=sum(u.time_ns for u in small))]
        sides = (rest, pooled) if short is left_old else (pooled, rest)
        return [KernelPair(tuple(sides[0]), tuple(sides[1]), "rest")]
    return []


def _by_name(uses: Iterable[KernelUse]) -> dict[str, list[KernelUse]]:
    found: dict[str, list[KernelUse]] = {}
    for use in uses:
        found.setdefault(use.name, []).append(use)
    return found


def _pooled(uses: Sequence[KernelUse]) -> KernelUse:
    calls = sum(use.calls for use in uses)

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) != len(values) or not calls:
            return None
        return sum(value * use.calls for value, use in zip(known, uses, strict=True)) / calls

    return evolve(
        uses[0],
        calls=calls,
        time_ns=sum(use.time_ns for use in uses),
        grid=uses[0].grid if len(uses) == 1 else (),
        block=uses[0].block if len(uses) == 1 else (),
        flops=mean([use.flops for use in uses]),
        tensor=mean([use.tensor for use in uses]),
        dram=mean([use.dram for use in uses]),
    )


def _graphs(before: list[KernelUse], after: list[KernelUse]) -> list[KernelPair]:
    """A CUDA graph recorded as one block on one side alone: the new kernels of the other are those it held."""
    if any(u.kind == GRAPH for u in before) == any(u.kind == GRAPH for u in after) or not (before and after):
        return []
    left, right = (
        tuple(use for use in side if use.kind == GRAPH or (use.kind == "kernel" and not _has_graph(side)))
        for side in (before, after)
    )
    if not (left and right):
        return []
    _drop(before, left)
    _drop(after, right)
    return [KernelPair(left, right, GRAPH)]


def _has_graph(uses: Iterable[KernelUse]) -> bool:
    return any(use.kind == GRAPH for use in uses)


def _by_order(
    before: RegionSide, after: RegionSide, left_old: list[KernelUse], left_now: list[KernelUse]
) -> list[KernelPair]:
    """Kernels that stand where others stood; takes them out of both lists."""
    if not (left_old and left_now):
        return []
    old, now = ({use.signature: use for use in side} for side in (left_old, left_now))
    orders = [
        [("old" if s in old else "now" if s in now else "", s) for s in region.launch_order()]
        for region in (before, after)
    ]
    if not all(orders):
        return _by_family(left_old, left_now)
    groups: list[_Group] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, orders[0], orders[1], autojunk=False).get_opcodes():
        if tag == "replace":
            gone = [old[s] for s in dict.fromkeys(s for _, s in orders[0][i1:i2]) if s in old]
            come = [now[s] for s in dict.fromkeys(s for _, s in orders[1][j1:j2]) if s in now]
            groups += _split_by_family(gone, come)
    pairs = []
    for gone, come in _joined(groups):
        pairs.append(KernelPair(tuple(gone), tuple(come), ORDER))
        _drop(left_old, gone)
        _drop(left_now, come)
    return pairs


def _drop(uses: list[KernelUse], gone: Iterable[KernelUse]) -> None:
    """Take some out of a list in which each signature is once."""
    signatures = {use.signature for use in gone}
    uses[:] = [use for use in uses if use.signature not in signatures]


def _joined(groups: list[_Group]) -> list[_Group]:
    """Groups that share a kernel are one: what was replaced in one layer is the same in the next."""
    found: list[_Group] = []
    for gone, come in groups:
        apart = []
        own = [{use.signature: use for use in uses} for uses in (gone, come)]
        for group in found:
            if any(use.signature in known for uses, known in zip(group, own, strict=True) for use in uses):
                for uses, known in zip(group, own, strict=True):
                    known.update({use.signature: use for use in uses})
            else:
                apart.append(group)
        found = [*apart, (list(own[0].values()), list(own[1].values()))]
    return found


def _split_by_family(gone: list[KernelUse], come: list[KernelUse]) -> list[_Group]:
    """What stands between the same neighbours: family by family where all of them agree, else together."""
    families = {use.family for use in gone}
    if len(families) > 1 and families == {use.family for use in come}:
        return [([u for u in gone if u.family == f], [u for u in come if u.family == f]) for f in sorted(families)]
    return [(gone, come)] if gone and come else []


def _by_family(left_old: list[KernelUse], left_now: list[KernelUse]) -> list[KernelPair]:
    """Without an order: one kernel of a family is gone, another is launched as often."""
    pairs = []
    for use in list(left_old):
        same = [n for n in left_now if n.family == use.family and abs(n.calls - use.calls) <= 0.01 * use.calls]
        if len(same) == 1:
            pairs.append(KernelPair((use,), (same[0],), ORDER))
            left_old.remove(use)
            left_now.remove(same[0])
    return pairs
