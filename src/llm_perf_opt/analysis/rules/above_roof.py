"""Kernels against their roofs, where counters tell: what families take beyond them, and what runs at the memory's.

Which rule it is goes by the family of the kernels, of products by the roof that limits the longest (`[kernel_fixes]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from llm_perf_opt.analysis.rules.gains import family_names, generation_of
from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.kernel_limits import leaves_sms_idle, ncu_says_of
from llm_perf_opt.analysis.verdicts.launches import Kind
from llm_perf_opt.analysis.verdicts.roofs import ROOFS, Floats, Roofed, bounds
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.families import COLLECTIVE, HOST_COPY, MEMCPY, MIGRATION, MULTIPLYING, PEER_COPY, is_fusable
from llm_perf_opt.metrics.quantity import nanoseconds, shown, total
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.labels import counted as count_of
from llm_perf_opt.regions.model import FamilyTime
from llm_perf_opt.regions.names import short_kernel_name

_KERNELS_NAMED = 3
_NO_KERNELS = (HOST_COPY, PEER_COPY, MIGRATION, MEMCPY, COLLECTIVE)  # or none that anybody writes anew
_MOST = 0.5
_FEWEST_TO_FUSE = 2
_FEWEST_BYTES, _MOST_BYTES = 0.35, 0.7  # fewer, as far as is known
_REACHED = 0.6  # of a roof: what a kernel that is written well reaches at least
_BEST = 0.85  # of a roof: the best kernels are no nearer
_LONG, _HARDLY = 100_000, 0.1  # ns of a kernel, and of the memory's peak
_SHORTEST = 1_500  # ns of a kernel that does nothing
_FEWER_BYTES = 0.5  # what smaller data types or larger batches leave of the traffic, say: 8 bits in place of 16


def above_the_roof(rule: str) -> Find:
    """What is found for one of these rules."""

    def find(of: Evaluated) -> Iterator[Found]:
        if not of.roofed.analysed.any():
            return
        fusable, memory, other = (verdict_rules().kernel_fixes[name] for name in ("fusable", "gemm_dram", "other"))
        found = [*(_fusable_kernels(of) if rule in (fusable, other) else ())]
        found += _other_kernels(of, rule) if rule != fusable else ()
        found += _at_the_memory_roof(of) if rule in (fusable, memory) else ()
        yield from (one for one in found if one.rule == rule)

    return find


def has_neighbours(of: Evaluated) -> bool:
    """Are there launches that could be fused with each other?

    Kernels of one's own in a report of ncu are mostly versions of the same one; what runs after what, it does not say.
    """
    return not _own_alone(of) and (of.facts.numbers["fusable_together"] or 0) >= _FEWEST_TO_FUSE


def _own_alone(of: Evaluated) -> bool:
    """Is there nothing but counters, of kernels that are not PyTorch's?"""
    return of.region.time_source == "ncu" and not of.torch


def _fusable_kernels(of: Evaluated) -> Iterator[Found]:
    if has_neighbours(of):
        group = [f for f in of.families if is_fusable(f.family)]
        yield from _above(of, group, "fusion", lambda longest: _fusion_or_slow(of.roofed, longest[0]))


def _fusion_or_slow(roofed: Roofed, longest: int) -> str:
    """Fusing saves traffic and launches: long kernels that hardly use the memory spend their time on neither."""
    fixes, row = verdict_rules().kernel_fixes, roofed.launches.which.tolist().index(longest)
    mean = roofed.launches.time_ns[row] / max(int(roofed.launches.calls[row]), 1)
    share = float(np.nan_to_num(roofed.shares["dram"][row], nan=1.0))
    return fixes["other"] if mean >= _LONG and share <= _HARDLY else fixes["fusable"]


def _other_kernels(of: Evaluated, rule: str) -> Iterator[Found]:
    for family in of.families:
        if family.recoverable is None or family.family in _NO_KERNELS:
            continue
        if is_fusable(family.family) and not _own_alone(of):
            continue
        if any(_fix_at(family.family, roof) == rule for roof in ("", *ROOFS)):
            yield from _above(of, [family], "kernels", lambda longest: _kernel_fix(of.roofed, longest))


def _at_their_pipe(of: Evaluated, longest: int) -> bool:
    """Does the kernel that takes longest run near the peak of the SMs' busiest pipe? What helps there, the verdict says."""
    at: list[int] = of.roofed.launches.which.tolist()
    return bounds(of.roofed)[at.index(longest)] == "sm"


def at_memory_roof(of: Evaluated) -> set[str]:
    """Kernels that counters show at the memory's roof: a faster pipe of the SMs would not make them faster."""
    kinds = of.roofed.launches.timed_kinds
    return {kinds[row][0].kernel_name for row, bound in enumerate(bounds(of.roofed)) if bound == "dram"}


def _at_the_memory_roof(of: Evaluated) -> Iterator[Found]:
    """Kernels that run as fast as the memory allows, where they are most of the time: only fewer bytes help."""
    if (of.facts.numbers["dram_share"] or 0.0) < _MOST:
        return
    launches, fixes, free = of.roofed.launches, verdict_rules().kernel_fixes, free_parts(of)
    near = [bound == "dram" for bound in bounds(of.roofed)]
    rows: dict[tuple[str, str], list[int]] = {}
    for row, (kind, _) in enumerate(launches.timed_kinds):
        if near[row]:
            fuse = is_fusable(kind.family) and has_neighbours(of)
            rule = fixes["fusable"] if fuse else fixes["gemm_dram"]
            # What multiplies reads weights or a cache; the rest has neither, so nothing to quantise.
            texts = rule if fuse or kind.family in MULTIPLYING else f"{rule}.moving"
            rows.setdefault((rule, texts), []).append(row)
    for (rule, texts), own in rows.items():
        time, at_roof = (float((part[own] * free[own]).sum()) for part in (launches.time_ns, of.roofed.at_roof_ns))
        if not time:
            continue
        families = list(dict.fromkeys(launches.kinds[kind].family for kind in launches.which[own].tolist()))
        words = {"families": family_names(families), "share_of_roof": shown(nanoseconds(at_roof) / nanoseconds(time))}
        most = nanoseconds(at_roof * overlap_scale(of.split))
        won, interval = most * (1 - _FEWER_BYTES), (most * _FEWEST_BYTES, most * _MOST_BYTES)
        kind_name = "fusion" if rule == fixes["fusable"] else "kernels"
        mine = _launched(of, {launches.kinds[kind].kernel_name for kind in launches.which[own].tolist()})
        yield Found(
            rule,
            kind_name,
            nanoseconds(time),
            won,
            "+".join(families),
            words,
            texts=texts,
            interval=interval,
            rows=mine,
        )


def _above(
    of: Evaluated, group: Sequence[FamilyTime], kind: str, rule_of: Callable[[list[int]], str]
) -> Iterator[Found]:
    """What families of kernels take beyond their roofs, where that is known. `rule_of`: by their longest kinds."""
    known = [f for f in group if f.recoverable is not None]
    if not known:
        return
    launches, families = of.roofed.launches, {f.family for f in group}
    mine: Bools = np.array([launches.kinds[k].family in families for k in launches.which.tolist()], dtype=np.bool_)
    # What holds kernels back inside the SMs speaks of its own, as do rules that know a better cause.
    free, spoken = free_parts(of), mine & ~of.limits.claimed
    lost = of.roofed.recoverable_ns * free
    longest, kinds = _longest(of.roofed, families, lost), launches.kinds
    rule, first = rule_of(longest), kinds[longest[0]]
    if rule == verdict_rules().kernel_fixes["other"] and _at_their_pipe(of, longest[0]):
        return
    # From kernels that reach the roof to those that come near it.
    least = np.nan_to_num(np.maximum(launches.time_ns - of.roofed.at_roof_ns / _REACHED, 0.0)) * free
    if rule == verdict_rules().kernel_fixes["other"]:  # however little they do
        most = np.maximum(launches.time_ns - _SHORTEST * launches.calls, 0) * free
        part = np.minimum(most / np.maximum(lost, 1.0), 1.0)
        lost, least = lost * part, least * part
    recoverable, low = (
        nanoseconds(float(one[spoken].sum())) * overlap_scale(of.split) for one in (lost, np.minimum(least, lost))
    )
    at_roof = total([f.time_at_roof for f in known if f.time_at_roof is not None], "ns")
    analysed = total([f.analysed for f in known if f.analysed is not None], "ns")
    fusable = rule == verdict_rules().kernel_fixes["fusable"]
    if analysed.value and at_roof >= analysed * _BEST and not fusable:
        return
    yield Found(
        rule,
        kind,
        nanoseconds(float((launches.time_ns * free)[spoken].sum())),
        recoverable,
        family="+".join(f.family for f in group),
        words={
            "families": family_names([f.family for f in group]),
            "share_of_roof": shown(at_roof / analysed) if analysed.value else "–",
            "blocks": count_of(prod(first.grid), "block"),
            "threads": count_of(prod(first.block), "thread"),
            "ncu_says": ncu_says_of(of.region.rules, {kinds[k].kernel_name for k in longest}),
        },
        kernels=list(dict.fromkeys(short_kernel_name(kinds[k].kernel_name) for k in longest)),
        texts=_texts(of, rule, first),
        interval=(low, recoverable),
        rows=_launched(of, {launches.kinds[k].kernel_name for k in launches.which[spoken].tolist()}),
    )


def _launched(of: Evaluated, kernels: set[str]) -> Bools:
    """The launches of some kernels that no rule has spoken for."""
    return of.launched.fits(lambda kind: kind.kernel in kernels) & of.free.rows


def _texts(of: Evaluated, rule: str, longest: Kind) -> str:
    """The entry of its words, where the kernel that takes longest has others than its rule."""
    fixes, capability = verdict_rules().kernel_fixes, of.facts.numbers.get("compute_capability")
    if rule == fixes["other"] and longest.grid and leaves_sms_idle(longest):
        return f"{rule}.small"
    made_for = generation_of(longest.kernel_name) if rule == fixes["attention"] else None
    return f"{rule}.newest" if made_for is not None and capability is not None and made_for >= capability else ""


def free_parts(of: Evaluated) -> Floats:
    """Of each row with counters, the part of its time that no rule has spoken for."""
    shares = of.free.shares(of.launched)
    parts = [shares.get(kind.kernel_name, 1.0) for kind, _ in of.roofed.launches.timed_kinds]
    return np.array(parts, dtype=np.float64)


def _longest(roofed: Roofed, families: set[str], lost: Floats) -> list[int]:
    """Kinds of these families whose launches take most of the time above the roof, each kernel once."""
    launches = roofed.launches
    by_name: dict[str, tuple[float, int]] = {}
    for row, kind in enumerate(launches.which.tolist()):
        one = launches.kinds[kind]
        if one.family in families:
            time, _ = by_name.get(one.kernel_name, (0.0, kind))
            by_name[one.kernel_name] = (time + float(lost[row]), kind)
    longest = sorted(by_name.values(), reverse=True)
    return [kind for _, kind in longest[:_KERNELS_NAMED]]


def _kernel_fix(roofed: Roofed, longest: list[int]) -> str:
    launches = roofed.launches
    row = launches.which.tolist().index(longest[0])
    return _fix_at(launches.kinds[longest[0]].family, bounds(roofed)[row])


def _fix_at(family: str, roof: str) -> str:
    fixes = verdict_rules().kernel_fixes
    return fixes.get(f"{family}_{roof}") or fixes.get(family, fixes["other"])
