"""Prompts that are read beside requests that decode."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.quantity import nanoseconds, percent, shown

_LONGER = 2.0  # than a decode step
_FEWEST = 0.25  # decode steps for each mixed one: below that, nothing but throughput is asked for
_HALF = 0.5  # of the tokens in a step, and so of what it takes longer
_LEAST, _MOST = 0.25, 0.75  # of it: chunks are cut a little, or to a fourth


def _find(of: Evaluated) -> Iterator[Found]:
    phases = {name: timing.steps for name, timing in of.phases.items()}
    decode, mixed = phases.get("decode_step"), phases.get("mixed_step")
    if of.steps is None or of.steps.phase != "mixed_step" or decode is None or mixed is None:
        return
    short, long = decode.median_ns, mixed.median_ns
    often = decode.instances >= _FEWEST * mixed.instances
    if not short or not long or long < _LONGER * short or not often:
        return
    now, launched = of.light.now.of("ns"), of.launched
    most = launched.time(of.free.rows) if len(launched) else now
    won = min(_HALF * (1 - short / long) * now, most)
    words = {
        "mixed": shown(nanoseconds(long)),
        "decode": shown(nanoseconds(short)),
        "part": percent(mixed.instances / (mixed.instances + decode.instances), ".0"),
        "tokens": f"{of.steps.tokens / of.steps.instances:,.0f}",
    }
    time = nanoseconds((1 - short / long) * now)
    interval = nanoseconds(won * _LEAST / _HALF), min(time, nanoseconds(won * _MOST / _HALF))
    yield Found("serve.mixed", "waiting", time, nanoseconds(won), words=words, interval=interval)


RULE = Rule(
    id="serve.mixed",
    title="Long prompt chunks delay requests that decode",
    costs="A request that decodes waits for the whole step. A step that also reads a long chunk of a prompt delays every other request, which makes the tail of the time per token.",
    seen="Mixed steps of a server that take at least twice as long as its decode steps, with enough decode steps for latency to matter.",
    words=Words(
        because="requests that decode wait {mixed} in a mixed step ({tokens} tokens) and {decode} in a decode step; {part} of these steps are mixed",
        action="for shorter waits at about the same throughput, read prompts in smaller chunks (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size, TensorRT-LLM: --max_num_tokens, transformers: --cb-max-batch-tokens), or on other GPUs than those that decode",
    ),
    find=_find,
    gain="Half of the extra time of a mixed step, as latency (interval: a quarter to three quarters), because the same work is done in more, shorter steps.",
    before="vllm serve MODEL --max-num-batched-tokens 8192",
    after="vllm serve MODEL --max-num-batched-tokens 2048",
    unless="Only throughput counts: larger chunks are then better.",
)
