"""Which samples of a signature are of which cluster (see `regions.duration_clusters`): by how long ncu saw them take.

Under ncu a kernel takes about a microsecond longer, and all of them longer where clocks are held low. Both are learned
from the signatures that have one cluster only, and taken out before a sample is compared with the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define

from llm_perf_opt.analysis.sample_matrix import Floats
from llm_perf_opt.regions.duration_clusters import DurationClusters

_LONG_NS = 20_000  # what ncu adds to a launch does not show in kernels that take longer
_SLOWER = (0.5, 4.0)  # ncu over timeline, of long kernels: more is another GPU, not another clock
_ADDED_NS = 1_000.0  # seen on an H200
_MOST_ADDED_NS = 5_000.0


@define(frozen=True)
class Clock:
    """How durations under ncu come about from those of the timeline."""

    slower: float = 1.0
    added_ns: float = _ADDED_NS

    def in_timeline(self, duration_ns: Floats) -> Floats:
        """Durations of ncu as the timeline would have them."""
        return np.maximum(duration_ns - self.added_ns, 1.0) / self.slower


def clock_of(timeline_ns: Floats, ncu_ns: Floats) -> Clock:
    """From pairs of durations of the same work."""
    long = timeline_ns >= _LONG_NS
    slower = float(np.clip(np.median(ncu_ns[long] / timeline_ns[long]), *_SLOWER)) if long.any() else 1.0
    short = ~long
    added = float(np.median(ncu_ns[short] - slower * timeline_ns[short])) if short.any() else _ADDED_NS
    return Clock(slower, float(np.clip(added, 0.0, _MOST_ADDED_NS)))


def samples_of_clusters(
    clusters: DurationClusters, samples: Mapping[int, Sequence[int]], duration_ns: Floats
) -> dict[int, list[int]]:
    """The samples of every cluster that has some. `samples`: rows by signature; `duration_ns`: of each row, by ncu."""
    means = clusters.mean
    of_signature: dict[int, list[int]] = {}
    for cluster, signature in enumerate(clusters.signature.tolist()):
        if signature in samples:
            of_signature.setdefault(signature, []).append(cluster)
    alone = [(cluster[0], row) for s, cluster in of_signature.items() if len(cluster) == 1 for row in samples[s]]
    clock = Clock()
    if alone:
        known, rows = (np.array(column, dtype=np.int64) for column in zip(*alone, strict=True))
        clock = clock_of(means[known], duration_ns[rows])
    found: dict[int, list[int]] = {}
    for signature, candidates in of_signature.items():
        logs = np.log(np.maximum(means[candidates], 1.0))
        for row in samples[signature]:
            seen = float(np.log(clock.in_timeline(duration_ns[row : row + 1])[0]))
            nearest = candidates[int(np.argmin(np.abs(logs - seen)))]
            found.setdefault(nearest, []).append(row)
    return found
