"""What the names of a server's steps say of each: requests in the batch, tokens read, tokens made.

Our own annotation writes `decode_step, batch = 8, tokens = 8, new = 8`; those numbers are no part of a name. vLLM and
SGLang write `execute_context_1(512)_generation_8(8)` and `step[EXTEND bs=1 toks=4096]`, TensorRT-LLM
`[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 8 gen reqs`. Steps of one phase are grouped by their size: a
median over batches of 1 and of 64 is the time of neither.
"""

from __future__ import annotations

import re

import numpy as np
from attrs import evolve

from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.step_graphs import step_graphs
from llm_perf_opt.regions.timing import StepGroup, Steps

_OURS = re.compile(r", batch = (?P<batch>\d{1,7}), tokens = (?P<tokens>\d{1,9})(?:, new = (?P<new>\d{1,9}))?$")
_VLLM = re.compile(
    r"execute_(?:\d{1,9}_)?context_(?P<prompts>\d{1,7})\((?:sq)?(?P<read>\d{1,9})(?:_\d{1,18}|sk[\dsqk]{1,80})?\)"
    r"_generation_(?P<sequences>\d{1,7})\((?:sq)?(?P<made>\d{1,9})(?:_\d{1,18}|sk[\dsqk]{1,80})?\)$"
)
_SGLANG = re.compile(
    r"step\[(?P<mode>[A-Z0-9_]{1,40}) bs=(?P<batch>\d{1,7})(?: toks=(?P<tokens>\d{1,9}))?(?P<detail>(?: [a-z_]{1,20}=\d{1,18}){0,16})\]$"
)
_QUERIES = re.compile(r" [cg]_sq=(\d{1,9})")  # tokens of prompts, and of others
_TENSORRT = re.compile(
    r"\[Executor\] _forward_step(?: \d{1,18})?: (?P<prompts>\d{1,7}) ctx reqs, "
    r"(?:(?P<read>\d{1,9}) ctx tokens, )?(?P<sequences>\d{1,7}) gen reqs$"
)
_MOST_GUESSED = 64  # tokens of a request in one step; as the annotation has it (`model.py`)
_NONE = (UNKNOWN, UNKNOWN, UNKNOWN)
PREFILL, DECODE, MIXED, VERIFY, DRAFT, STEP = PHASES = (
    *("prefill", "decode_step", "mixed_step"),
    *("verify", "draft", "step"),  # the last: which of them cannot be told
)
SGLANG_MODES = {  # as the annotation names them, too (`engine_batches.py`)
    **{"EXTEND": PREFILL, "SPLIT_PREFILL": PREFILL, "DECODE": DECODE, "MIXED": MIXED},
    **{"TARGET_VERIFY": VERIFY, "DRAFT_EXTEND": DRAFT, "DRAFT_EXTEND_V2": DRAFT},
}
_SGLANG_LABELS = SGLANG_MODES | {"VERIFY": VERIFY, "DRAFT": DRAFT}  # as its ranges say it


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
        if queries := _QUERIES.findall(sglang["detail"]):
            return batch, sum(map(int, queries)), UNKNOWN
    if tensorrt := _TENSORRT.match(name):
        prompts, sequences = int(tensorrt["prompts"]), int(tensorrt["sequences"])
        if tensorrt["read"] is not None or not prompts:
            # Guessed tokens are not in the name, so that those that come out are not known.
            return prompts + sequences, int(tensorrt["read"] or 0) + sequences, UNKNOWN
    return _NONE


def phase_of(name: str) -> str:
    """What kind of step a name tells of."""
    if vllm := _VLLM.match(name):
        prompts, sequences, made = (int(vllm[part]) for part in ("prompts", "sequences", "made"))
        if prompts:
            return MIXED if sequences else PREFILL
        if made <= sequences:
            return DECODE
        # Each brings as many guesses. Otherwise one may have been pushed out, and all of it is read again.
        return VERIFY if sequences and not made % sequences and made <= _MOST_GUESSED * sequences else STEP
    if sglang := _SGLANG.match(name):
        return _SGLANG_LABELS.get(sglang["mode"], STEP)
    if tensorrt := _TENSORRT.match(name):
        prompts, sequences = int(tensorrt["prompts"]), int(tensorrt["sequences"])
        return (MIXED if sequences else PREFILL) if prompts else DECODE if sequences else STEP
    own = without_numbers(name)
    return own if own in PHASES else STEP


def step_numbers(timeline: Timeline) -> Int64s | None:
    """Of each range, what its name says, its phase, and which graph it replays; None where no name says anything."""
    names = timeline.ranges.recorded_name
    known = {number: numbers_of(timeline.strings[number]) for number in np.unique(names).tolist()}
    # A step of nobody's requests, as of a rank that keeps others company, is none.
    known = {number: numbers if numbers[1] > 0 else _NONE for number, numbers in known.items()}
    if all(numbers == _NONE for numbers in known.values()):
        return None
    table = np.full((len(timeline.strings), len(_NONE) + 1), UNKNOWN, dtype=np.int64)
    for number, numbers in known.items():
        table[number] = *numbers, PHASES.index(phase_of(timeline.strings[number]))
    steps = np.flatnonzero(table[names, 0] != UNKNOWN)
    graphs = np.full((len(names), 2), UNKNOWN, dtype=np.int64)
    graphs[steps] = step_graphs(timeline, steps)
    return np.hstack([table[names], graphs])


def summed_up(numbers: Int64s | None, took: Int64s) -> Steps | None:
    """What some steps did together, and by size. None where their names do not say it of all."""
    if numbers is None or not len(numbers) or (numbers[:, 0] == UNKNOWN).any():
        return None
    batch, tokens, new, phase, replays, graph = numbers.T
    by_batch = bool((batch == tokens).all())
    size = batch if by_batch else tokens
    known = bool((replays != UNKNOWN).all())
    bucket = 2 * _bucket(size) + (replays if known else 0)
    groups = []
    for number in np.unique(bucket).tolist():
        mine = bucket == number
        graphs = np.unique(graph[mine])
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
                in_graph=bool(number % 2) if known else None,
                graphs=len(graphs) if known and number % 2 and UNKNOWN not in graphs else None,
            )
        )
    phases = np.unique(phase)
    return Steps(
        phase=PHASES[phases[0]] if len(phases) == 1 else STEP,
        instances=len(numbers),
        batch_min=int(batch.min()),
        batch_max=int(batch.max()),
        batch_mean=float(batch.mean()),
        tokens=int(tokens.sum()),
        new_tokens=None if (new == UNKNOWN).any() else int(new.sum()),
        median_ns=round(float(np.median(took))),
        grouped_by="batch" if by_batch else "tokens",
        groups=groups,
    )


def with_graphs(steps: Steps | None, recorded: Steps | None) -> Steps | None:
    """Steps that were timed with no profiler, and what a recording of the same program says of their graphs."""
    if steps is None or recorded is None:
        return steps

    def alike(group: StepGroup) -> StepGroup:
        same = [other for other in recorded.groups if _bucket(other.largest) == _bucket(group.largest)]
        if len({other.in_graph for other in same}) != 1:
            return group
        return evolve(group, in_graph=same[0].in_graph, graphs=same[0].graphs)

    return evolve(steps, groups=[alike(group) for group in steps.groups])


def _bucket(size: Int64s | int) -> Int64s:
    found: Int64s = np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64)
    return found
