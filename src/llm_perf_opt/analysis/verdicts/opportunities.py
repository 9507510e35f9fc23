"""What could be won back in a region, by cause, most first: waiting, copies, fusable kernels, kernels above their roof.

The one way into the answer: a rule is an entry of `[fix]` in `rules.toml` (its id and its words) and a function in
`RULES` below, which looks at a region (`Evaluated`) and gives what it found (`Found`). Rules share the time of the
region among them: no nanosecond may be promised twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from llm_perf_opt.analysis.verdicts.evaluated import Evaluated, from_graphs
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import idle_parts
from llm_perf_opt.analysis.verdicts.named_kernels import fusable_by_name, old_products, single_precision
from llm_perf_opt.analysis.verdicts.roofs import Roofed, bounds
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.families import COLLECTIVE, HOST_COPY, is_fusable, label_of
from llm_perf_opt.metrics.quantity import nanoseconds, shown, total
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.labels import counted
from llm_perf_opt.regions.model import FamilyTime, Opportunity
from llm_perf_opt.regions.names import short_kernel_name, visible

_KERNELS_NAMED = 3
_MOST = 0.5
_FEWEST_TO_FUSE = 2
_FEWER_BYTES = 0.5  # what smaller data types or larger batches leave of the traffic, say: 8 bits in place of 16


def opportunities(of: Evaluated) -> list[Opportunity]:
    """All that are worth a line, ranked."""
    least = of.light.now * verdict_rules().thresholds["least_opportunity"]
    found = [one for rule in RULES for one in rule(of) if one.recoverable >= least]
    return ranked(_opportunity(of, one) for one in found)


def ranked(found: Iterable[Opportunity]) -> list[Opportunity]:
    return sorted(found, key=lambda o: -o.recoverable.of("ns"))


def _opportunity(of: Evaluated, found: Found) -> Opportunity:
    texts, now = verdict_rules().fix[found.texts or found.rule], of.light.now
    amounts = {"now": now, "time": found.time, "recoverable": found.recoverable}
    words = of.facts.words | {name: shown(amount) for name, amount in amounts.items()} | found.words
    because, action = (text.format_map(words) for text in (texts.because, texts.action))
    return Opportunity(
        region=of.region.key,
        kind=found.kind,
        family=found.family,
        text=f"{visible('/'.join(of.region.path), 60)}: {because}: {action}",
        time=found.time,
        recoverable=found.recoverable,
        of=now,
        advice=action,
        kernels=list(found.kernels),
        rule=found.rule,
        because=because,
    )


# -- the rules ---------------------------------------------------------------------------------------


def _waiting(of: Evaluated) -> Iterator[Found]:
    """By what the host did meanwhile, where the recording shows it."""
    split, waiting = of.split, of.light.waiting
    if not waiting.value or not split.launches:
        return
    launches = {"launches": counted(split.launches, "launch")}
    if of.idle is not None:
        for part in idle_parts(of.idle, waiting.of("ns"), of.graphable, from_graphs(of.region)):
            time = nanoseconds(part.time_ns)
            words = launches | {"what": part.what, "each": shown(time / split.launches)}
            yield Found(part.rule, "waiting", time, time, words=words, texts=part.texts)
        return
    rule = "host.unknown" if of.verdict.bound == "host" else "host.graphs" if from_graphs(of.region) else "launch.graph"
    each = "–" if split.gap_per_launch is None else shown(split.gap_per_launch)
    words = launches | {"each": each, "what": f"{launches['launches']}, {each} each"}
    yield Found(rule, "waiting", waiting, waiting, words=words)


def _host_copies(of: Evaluated) -> Iterator[Found]:
    """Copies between host and GPU, as far as nothing else ran meanwhile."""
    copies, memory = of.split.host_copies, of.region.inclusive.memory
    if copies is None or not copies.value:
        return
    exposed = of.split.exposed_copies
    words = {"exposed": "" if exposed is None else f", for {shown(exposed)} of it nothing else runs"}
    # Memory that is pinned already is not to be pinned; where the recording does not say, pinning may help.
    unpinned = 2 * memory.pageable_time_ns >= memory.host_time_ns
    known = memory.pageable_time_ns + memory.pinned_time_ns > 0
    yield Found(
        "copy.pinned" if unpinned else "copy.host",
        "host copies",
        copies,
        copies * overlap_scale(of.split) if exposed is None else exposed,
        family=HOST_COPY,
        words=words,
        texts="" if unpinned or known else "copy.host.unknown",
    )


def _collectives(of: Evaluated) -> Iterator[Found]:
    yield from of.communication.found(of.light.now)


def _inside_the_sms(of: Evaluated) -> Iterator[Found]:
    yield from of.limits.found(of.region.rules, overlap_scale(of.split))


def _fusable_kernels(of: Evaluated) -> Iterator[Found]:
    group = [f for f in of.families if is_fusable(f.family)]
    if _has_neighbours(of):
        yield from _above_the_roof(of, group, "fusion", lambda _: verdict_rules().kernel_fixes["fusable"])
        yield from fusable_by_name(of)


def _has_neighbours(of: Evaluated) -> bool:
    return (of.facts.numbers["fusable_together"] or 0) >= _FEWEST_TO_FUSE


def _other_kernels(of: Evaluated) -> Iterator[Found]:
    for family in of.families:
        if not is_fusable(family.family) and family.family not in (HOST_COPY, COLLECTIVE):
            yield from _above_the_roof(of, [family], "kernels", lambda longest: _kernel_fix(of.roofed, longest))


def _at_the_memory_roof(of: Evaluated) -> Iterator[Found]:
    """Kernels that run as fast as the memory allows, where they are most of the time: only fewer bytes help."""
    if (of.facts.numbers["dram_share"] or 0.0) < _MOST:
        return
    launches, fixes = of.roofed.launches, verdict_rules().kernel_fixes
    near = [bound == "dram" for bound in bounds(of.roofed)]
    rows: dict[str, list[int]] = {}
    for row, (kind, _) in enumerate(launches.timed_kinds()):
        if near[row]:
            fuse = is_fusable(kind.family) and _has_neighbours(of)
            rows.setdefault(fixes["fusable"] if fuse else fixes["gemm_dram"], []).append(row)
    for rule, own in rows.items():
        time, at_roof = (nanoseconds(float(part[own].sum())) for part in (launches.time_ns, of.roofed.at_roof_ns))
        families = list(dict.fromkeys(launches.kinds[kind].family for kind in launches.which[own].tolist()))
        words = {"families": _names(families), "share_of_roof": shown(at_roof / time)}
        won = at_roof * ((1 - _FEWER_BYTES) * overlap_scale(of.split))
        yield Found(rule, "fusion" if rule == fixes["fusable"] else "kernels", time, won, "+".join(families), words)


RULES: tuple[Callable[[Evaluated], Iterator[Found]], ...] = (
    _waiting,
    _host_copies,
    _collectives,
    _inside_the_sms,
    _fusable_kernels,
    _other_kernels,
    _at_the_memory_roof,
    single_precision,
    old_products,
)


# -- kernels against their roofs ---------------------------------------------------------------------


def _above_the_roof(
    of: Evaluated, group: Sequence[FamilyTime], kind: str, rule_of: Callable[[list[int]], str]
) -> Iterator[Found]:
    """What families of kernels take beyond their roofs, where that is known. `rule_of`: by their longest kinds."""
    known = [f for f in group if f.recoverable is not None]
    if not known:
        return
    launches, families = of.roofed.launches, {f.family for f in group}
    mine: Bools = np.array([launches.kinds[k].family in families for k in launches.which.tolist()], dtype=np.bool_)
    # What holds kernels back inside the SMs speaks of its own.
    recoverable = nanoseconds(float(of.roofed.recoverable_ns[mine & ~of.limits.claimed].sum())) * overlap_scale(
        of.split
    )
    at_roof = total([f.time_at_roof for f in known if f.time_at_roof is not None], "ns")
    analysed = total([f.analysed for f in known if f.analysed is not None], "ns")
    names = _names([f.family for f in group])
    reached = shown(at_roof / analysed) if analysed.value else "–"
    longest, kinds = _longest(of.roofed, families), launches.kinds
    yield Found(
        rule_of(longest),
        kind,
        total([f.time for f in group], "ns"),
        recoverable,
        family="+".join(f.family for f in group),
        words={"families": names, "share_of_roof": reached},
        kernels=list(dict.fromkeys(short_kernel_name(kinds[k].kernel_name) for k in longest)),
    )


def _names(families: Sequence[str]) -> str:
    return " + ".join(label_of(family) for family in families[:3]) + (" + others" if len(families) > 3 else "")


def _longest(roofed: Roofed, families: set[str]) -> list[int]:
    """Kinds of these families whose launches take most of the time above the roof, each kernel once."""
    launches, lost = roofed.launches, roofed.recoverable_ns
    by_name: dict[str, tuple[float, int]] = {}
    for row, kind in enumerate(launches.which.tolist()):
        one = launches.kinds[kind]
        if one.family in families:
            time, _ = by_name.get(one.kernel_name, (0.0, kind))
            by_name[one.kernel_name] = (time + float(lost[row]), kind)
    longest = sorted(by_name.values(), reverse=True)
    return [kind for _, kind in longest[:_KERNELS_NAMED]]


def _kernel_fix(roofed: Roofed, longest: list[int]) -> str:
    fixes, launches = verdict_rules().kernel_fixes, roofed.launches
    family = launches.kinds[longest[0]].family
    row = launches.which.tolist().index(longest[0])
    return fixes.get(f"{family}_{roofed.roof[row]}") or fixes.get(family, fixes["other"])
