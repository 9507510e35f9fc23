"""Tokens that the CPU chooses."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import LEAST
from llm_perf_opt.analysis.rules.idle_found import idle_found
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.quantity import nanoseconds, shown

_SAMPLES = tuple(f"aten::{name}" for name in ("topk", "sort", "multinomial", "softmax", "argmax", "cumsum", "max"))
_VOCABULARY = 1000  # the last dimension of logits, at least
_CAUSES = ("host.sync", "host.python", "host.unknown", "launch.graph", "copy.host")


def _find(of: Evaluated) -> Iterator[Found]:
    found = [
        one
        for one in of.launched.on_host
        if one.name in _SAMPLES and any(t.dims[-1] >= _VOCABULARY for t in one.inputs if t is not None)
    ]
    time = sum(one.time_ns for one in found)
    if time < LEAST * of.light.now.of("ns"):
        return
    idle = of.free.take_idle(_CAUSES, of.light.waiting_ns)
    copies = of.split.exposed_copies
    won = idle + (copies.of("ns") if copies is not None else 0.0)
    of.free.copies = 0.0
    what = ", ".join(f"{one.name} {shown(nanoseconds(one.time_ns))}" for one in found[:3])
    if won:
        yield idle_found(of, "sampling.host", won, what)


RULE = Rule(
    id="sampling.host",
    title="Sampling on the host",
    costs="Logits of the whole vocabulary go to the CPU, which sorts them while the GPU waits.",
    seen="Operators that sample (topk, sort, softmax, multinomial) over a thousand values or more and launch nothing: they run on the CPU.",
    words=Words(
        because="the GPU waits {time} of {now} while the host samples ({what})",
        action="sample on the GPU: topk, softmax and multinomial there, and copy the chosen tokens only",
    ),
    find=_find,
    operators=True,
    gain="The idle time, plus the copies of logits during which nothing else runs.",
    before="word = sample(logits.cpu())",
    after='word = sample(logits)  # and word.to("cpu", non_blocking=True) where it is needed',
    unless="The sampler has no counterpart on the GPU: grammars, or constraints that are checked token by token.",
)
