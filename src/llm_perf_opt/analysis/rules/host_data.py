"""The input pipeline is too slow"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import evolve

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart

_NAME = "host.data"
# What the host is seen at, by the names of ranges, operators and functions; "" is anything else.
_SEEN = {
    "loader": re.compile(r"dataloader|torch/utils/data/|collate", re.IGNORECASE),
    "tokens": re.compile(r"tokeni[sz]", re.IGNORECASE),
    "media": re.compile(r"image|jpe?g|audio|video|\bdali\b", re.IGNORECASE),
}
_BECAUSE = "the GPU waits {time} of {now} for input ({what})"


def _find(of: Evaluated) -> Iterator[Found]:
    """What is to be done is said of what takes most of the time."""
    for found in idle_of(_NAME)(of):
        seen = _most_seen(found.idle)
        yield evolve(found, texts=f"{_NAME}.{seen}") if seen else found


def _most_seen(idle: Sequence[IdlePart]) -> str:
    times: dict[str, int] = {}
    for cause in (cause for part in idle for cause in part.causes if cause.what):
        seen = next((kind for kind, name in _SEEN.items() if name.search(cause.what)), "")
        times[seen] = times.get(seen, 0) + cause.time_ns
    return max(times, key=lambda kind: times[kind], default="")


RULE = Rule(
    id=_NAME,
    title="The input pipeline is too slow",
    costs="The GPU has nothing to do until the next batch arrives.",
    seen="Gaps while the host runs code that reads or prepares input: `enumerate(DataLoader)`, `collate`, a tokeniser, a range with such a name.",
    words=Words(
        because=_BECAUSE,
        action="prepare input while the GPU works: read the next batch in another thread or process that fills a queue, or preprocess the data beforehand",
    ),
    find=_find,
    before="DataLoader(data, batch_size=64)",
    after="DataLoader(data, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)",
    unless="The disk or the network is at its limit: workers then wait, too, and smaller or closer data helps.",
    variants={
        "loader": Words(
            because=_BECAUSE,
            action="prepare input while the GPU works: more DataLoader workers (num_workers, persistent_workers, prefetch_factor) with pin_memory=True, or preprocess it beforehand",
        ),
        "tokens": Words(
            because=_BECAUSE,
            action="tokenise while the GPU works: in another thread or process, many texts in one call of a fast tokenizer (use_fast=True), or once beforehand; of a server, in more front-end processes (vLLM: --api-server-count)",
        ),
        "media": Words(
            because=_BECAUSE,
            action="decode while the GPU works: in other processes that read ahead, on the GPU (nvJPEG, NVDEC, DALI), or once beforehand",
        ),
    },
)
