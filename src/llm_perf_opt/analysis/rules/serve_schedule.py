"""The engine's own work between two steps."""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="serve.schedule",
    title="The engine's own work between two steps",
    costs="The scheduler chooses the next batch and processes the output of the last one while the GPU has nothing to do.",
    seen="GPU idle time in the ranges `schedule`, `update` and `sample` of a serving engine.",
    words=Words(
        because="the GPU waits {time} of {now} for the engine's scheduler ({what})",
        action="let the engine schedule while the GPU works (vLLM: --async-scheduling, SGLang: without --disable-overlap-schedule, transformers: use_async_batching), and give its process a CPU core of its own",
    ),
    find=idle_of("serve.schedule"),
    before="vllm serve MODEL",
    after="vllm serve MODEL --async-scheduling",
    unless="The next step depends on the tokens of this one, as in some kinds of speculative or guided decoding.",
)
