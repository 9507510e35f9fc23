"""The input pipeline is too slow"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.data",
    title="The input pipeline is too slow",
    costs="The GPU has nothing to do until the next batch arrives.",
    seen="Gaps while the host runs code that reads or prepares input: `enumerate(DataLoader)`, `collate`, a range with such a name.",
    words=Words(
        because="the GPU waits {time} of {now} for input ({what})",
        action="prepare input while the GPU works: more DataLoader workers (num_workers, persistent_workers, prefetch_factor) with pin_memory=True, or preprocess it beforehand",
    ),
    find=idle_of("host.data"),
    before="DataLoader(data, batch_size=64)",
    after="DataLoader(data, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)",
    unless="The disk or the network is at its limit: workers then wait, too, and smaller or closer data helps.",
)
