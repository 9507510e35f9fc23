"""What the names of a server's steps say of each: requests in the batch, tokens read, tokens made.

Our own annotation writes `decode_step, batch = 8, tokens = 8, new = 8`; those numbers are no part of a name. vLLM and
SGLang write `execute_context_1(512)_generation_8(8)` and `step[EXTEND bs=1 toks=4096]`. Steps of one phase are grouped
by their size: a median over batches of 1 and of 64 is the time of neither.
"""

from __future__ import annotations

import re

import numpy as np

from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.timing import StepGroup, Steps

_OURS = re.compile(r", batch = (?P<batch>\d{1,7}), tokens = (?P<tokens>\d{1,9})(?:, new = (?P<new>\d{1,9}))?$")
_VLLM = re.compile(
    r"execute_(?:\d{1,9}_)?context_(?P<prompts>\d{1,7})\((?:sq)?(?P<read>\d{1,9})(?:sk[\dsqk]{1,80})?\)"
    r"_generation_(?P<sequences>\d{1,7})\((?:sq)?(?P<made>\d{1,9})(?:sk[\dsqk]{1,80})?\)$"
)
_SGLANG = re.compile(r"step\[(?P<mode>[A-Z_]{1,40}) bs=(?P<batch>\d{1,7})(?: toks=(?P<tokens>\d{1,9}))?\]$")
_NONE = (UNKNOWN, UNKNOWN, UNKNOWN)


def without_numbers(name: str) -> str:
    """The name of a step as it was annotated, without its numbers."""
    return _OURS.sub("", name)


def numbers_of(name: str) -> tuple[int, int, int]:
    """Requests, tokens that go through the model, tokens that come out; UNKNOWN for what the name does not say."""
    if ours := _OURS.search(name):
        return int(ours["batch"]), int(ours["tokens"]), UNKNOWN if ours["new"] is None else int(ours["new"])
    if vllm := _VLLM.match(name):
        prompts, read, sequences, made = (int(vllm[part]) for part in ("prompts", "read", "sequences", "made"))
        decodes = prompts == 0 and made == sequences  # more: guessed tokens, and how many are right is not said
        return prompts + sequences, read + made, made if decodes else UNKNOWN
    if sglang := _SGLANG.match(name):
        batch, decodes = int(sglang["batch"]), sglang["mode"] == "DECODE"
        if decodes or sglang["tokens"] is not None:
            return batch, batch if decodes else int(sglang["tokens"]), batch if decodes else UNKNOWN
    return _NONE


def step_numbers(timeline: Timeline) -> Int64s | None:
    """Of each range, what its name says; None where no name says anything."""
    names = timeline.ranges.recorded_name
    known = {number: numbers_of(timeline.strings[number]) for number in np.unique(names).tolist()}
    if all(numbers == _NONE for numbers in known.values()):
        return None
    table = np.full((len(timeline.strings), 3), UNKNOWN, dtype=np.int64)
    for number, numbers in known.items():
        table[number] = numbers
    found: Int64s = table[names]
    return found


def summed_up(numbers: Int64s | None, took: Int64s) -> Steps | None:
    """What some steps did together, and by size. None where their names do not say it of all."""
    if numbers is None or not len(numbers) or (numbers[:, 0] == UNKNOWN).any():
        return None
    batch, tokens, new = numbers.T
    by_batch = bool((batch == tokens).all())
    size = batch if by_batch else tokens
    bucket = np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64)
    groups = []
    for number in np.unique(bucket).tolist():
        mine = bucket == number
        middle, high = np.quantile(took[mine], (0.5, 0.9)).tolist()
        groups.append(
            StepGroup(
                smallest=int(size[mine].min()),
                largest=int(size[mine].max()),
                instances=int(mine.sum()),
                total_ns=int(took[mine].sum()),
                median_ns=round(middle),
                p90_ns=round(high),
                tokens_per_step=float(tokens[mine].mean()),
            )
        )
    return Steps(
        instances=len(numbers),
        batch_min=int(batch.min()),
        batch_max=int(batch.max()),
        batch_mean=float(batch.mean()),
        tokens=int(tokens.sum()),
        new_tokens=None if (new == UNKNOWN).any() else int(new.sum()),
        grouped_by="batch" if by_batch else "tokens",
        groups=groups,
    )
