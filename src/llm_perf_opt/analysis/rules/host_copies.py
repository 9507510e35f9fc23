"""Rules about copies between host and device, as far as nothing else runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.metrics.families import HOST_COPY, MIGRATION
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.copy_work import MemoryWork

_LINK = 50e9  # B/s that pinned memory reaches over PCIe 5 with 16 lanes
_OTHER_LINKS = (25e9, 55e9)  # over PCIe 4, and at the best
_HALF = 0.5  # of what may be hidden: what the next step needs cannot wait
_WAITED_FOR = 0.2  # of the time of kernels, from which on pages that move are what they wait for
_LATENCY = 2_000  # ns of a copy of no bytes, wherever they lie


def copies_found(rule: str) -> Find:
    """`copy.pinned`, `copy.host` or `copy.managed`, whichever the copies of a region are."""

    def find(of: Evaluated) -> Iterator[Found]:
        yield from (found for found in _copies(of) if found.rule == rule)
        yield from idle_of(rule)(of)

    return find


def _copies(of: Evaluated) -> Iterator[Found]:
    copies, memory = of.split.host_copies, of.region.inclusive.memory
    if copies is None or not copies.value or not of.free.copies:
        return
    exposed = of.split.exposed_copies
    if 2 * memory.migration_time_ns >= memory.host_time_ns:
        yield from _migrations(of)
        return
    words = {"exposed": "" if exposed is None else f", for {shown(exposed)} of it nothing else runs"}
    # Memory that is pinned already is not to be pinned; where the recording does not say, pinning may help.
    unpinned = 2 * memory.pageable_time_ns >= memory.host_time_ns
    known = memory.pageable_time_ns + memory.pinned_time_ns > 0
    won = (copies * overlap_scale(of.split) if exposed is None else exposed) * of.free.copies
    if unpinned and known:
        likely, low, high = (
            nanoseconds(max(won.of("ns") - memory.host_bytes / link * 1e9 - memory.host_count * _LATENCY, 0.0))
            for link in (_LINK, *_OTHER_LINKS)
        )
        won, interval = likely, (low, high)
    else:  # no more can be hidden than there is to hide it behind; what stays on the GPU is all won
        interval = min(won, of.light.now - won) * _HALF, won
    yield Found(
        "copy.pinned" if unpinned else "copy.host",
        "host copies",
        copies,
        won,
        family=HOST_COPY,
        words=words,
        texts=_texts_of(memory, unpinned, known),
        interval=interval,
        copies_ns=copies.of("ns"),
    )


def _texts_of(memory: MemoryWork, unpinned: bool, known: bool) -> str:
    if 2 * memory.peer_time_ns >= memory.host_time_ns and not unpinned:
        return "copy.host.peers"
    return "" if unpinned or known else "copy.host.unknown"


def _migrations(of: Evaluated) -> Iterator[Found]:
    """Pages of unified memory: what the same bytes would take over the link at once can be hidden, the rest need not be."""
    memory, now = of.region.inclusive.memory, of.light.now
    time = min(nanoseconds(memory.migration_time_ns * of.free.copies), now)
    left = nanoseconds(memory.migration_bytes / _OTHER_LINKS[0] * 1e9)
    won = max(time - left, nanoseconds(0))
    if memory.migration_time_ns >= _WAITED_FOR * of.launched.time(of.free.rows):
        of.free.rows[:] = False  # what kernels take is the waiting for them
    yield Found("copy.managed", "host copies", time, won, family=MIGRATION, interval=(won * _HALF, time))
