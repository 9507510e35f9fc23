"""Which GPUs a recording's work ran on, so that ranks which share one are told from those that have their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import define

from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.distinct import distinct

_NO_UUID = re.compile(r"(GPU-)?[0-]*")  # also what is left of one in a recording without private data


@define(frozen=True)
class UsedGpus:
    """The GPUs that a recording's work ran on, as machines call them, and whose work it is."""

    ranks: frozenset[int | None]
    uuids: frozenset[str]

    @staticmethod
    def of(timeline: Timeline) -> UsedGpus:
        devices = {int(device) for work in timeline.work for device in distinct(work.device)}
        known = (str(timeline.gpu_facts.get(device, {}).get("uuid") or "") for device in devices)
        ranks = frozenset(process.rank for process in timeline.processes)
        return UsedGpus(ranks, frozenset(uuid for uuid in known if not _NO_UUID.fullmatch(uuid)))

    def shares_with(self, recordings: Sequence[UsedGpus]) -> bool:
        """Does another rank use one of them? Then samples of it are of the work of both."""
        return any(self.uuids & other.uuids and not self.ranks & other.ranks for other in recordings)
