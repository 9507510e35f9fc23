"""Tokens that the CPU chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.gains import LEAST
from llm_perf_opt.analysis.rules.idle_found import idle_found
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart
from llm_perf_opt.metrics.quantity import nanoseconds, shown

_SAMPLES = tuple(f"aten::{name}" for name in ("topk", "sort", "multinomial", "softmax", "argmax", "cumsum", "max"))
_VOCABULARY = 1000  # the last dimension of logits, at least
_SAMPLER = re.compile(r"(?<![a-z])sampl(e|er|ing)(?![a-z])", re.IGNORECASE)
_NAMED_CAUSES = ("host.python", "host.unknown", "host.graphs", "host.sync")
_CAUSES = ("host.sync", "host.python", "host.unknown", "launch.graph", "copy.host")


def _find(of: Evaluated) -> Iterator[Found]:
    found = [
        one
        for one in of.launched.on_host
        if one.name in _SAMPLES and any(t.dims[-1] >= _VOCABULARY for t in one.inputs if t is not None)
    ]
    time = sum(one.time_ns for one in found)
    if time < LEAST * of.light.now.of("ns"):
        yield from _by_name(of)
        return
    idle = of.free.take_idle(_CAUSES, of.light.waiting_ns)
    copies = of.split.exposed_copies.of("ns") if of.split.exposed_copies is not None else 0.0
    of.free.copies = 0.0
    what = ", ".join(f"{one.name} {shown(nanoseconds(one.time_ns))}" for one in found[:3])
    if idle or copies:
        yield idle_found(of, "sampling.host", idle, what, copies=copies)


def _by_name(of: Evaluated) -> Iterator[Found]:
    """Code that is called sampling, beside copies that nothing hides: NumPy, or a loop over tokens, is no operator."""
    copies = of.split.exposed_copies.of("ns") if of.split.exposed_copies is not None else 0.0
    parts = {rule: part for rule in _NAMED_CAUSES if (part := of.free.idle.get(rule)) is not None}
    times = {
        rule: sum(cause.time_ns for cause in part.causes if _SAMPLER.search(cause.what)) for rule, part in parts.items()
    }
    idle, least = sum(times.values()), LEAST * of.light.now.of("ns")
    memory = of.region.inclusive.memory
    if min(idle, copies) < least or 2 * memory.upload_bytes >= memory.host_bytes:  # logits come down
        return
    what = max(parts, key=lambda rule: times[rule])
    taken = [_in_samplers(part) for rule, time in times.items() for part in of.free.take_idle((rule,), time)]
    of.free.copies = 0.0
    words = f"{parts[what].what}; copies {shown(nanoseconds(copies))}"
    yield idle_found(of, "sampling.host", taken, words, copies=copies)


def _in_samplers(taken: IdlePart) -> IdlePart:
    """What was taken, in the lines of functions of such a name, where some have one."""
    named = [line for line in taken.lines if _SAMPLER.search(line.function)]
    whole, left = (sum(line.time_ns for line in lines) for lines in (taken.lines, named))
    return evolve(
        taken,
        lines=[evolve(line, time_ns=round(line.time_ns * whole / left)) for line in named] if left else taken.lines,
    )


RULE = Rule(
    id="sampling.host",
    title="Sampling on the host",
    costs="Logits of the whole vocabulary go to the CPU, which sorts them while the GPU waits.",
    seen="Operators that sample (topk, sort, softmax, multinomial) over a thousand values or more and launch nothing: they run on the CPU. Or ranges and functions with such names while the GPU waits, next to copies to the host that nothing overlaps.",
    words=Words(
        because="the GPU waits {time} of {now} while the host samples ({what})",
        action="sample on the GPU: topk, softmax and multinomial there, and copy only the chosen tokens",
    ),
    find=_find,
    gain="The idle time, plus the copies of logits during which nothing else runs.",
    before="word = sample(logits.cpu())",
    after='word = sample(logits)  # and word.to("cpu", non_blocking=True) where it is needed',
    unless="The sampler has no counterpart on the GPU: grammars, or constraints that are checked token by token.",
)
