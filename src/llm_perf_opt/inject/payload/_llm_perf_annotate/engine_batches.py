"""What a step of a serving engine is, from what its scheduler decided: never from shapes, never from a tensor.

A request is in prefill while tokens of its prompt are left when the step begins; a step of such requests alone is
`prefill`, of others alone `decode_step` (`verify` where they bring guessed tokens), of both `mixed_step`. Whoever
reads something that is not as expected raises, and the step is called `step`: that is never wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

STEP = "step"


class Step(NamedTuple):
    """A step that is about to run."""

    name: str
    batch: int  # requests
    tokens: int  # that go through the model
    new: int | None = None  # that come out, where that is known before
    stream: Any = None  # that it runs on, where that is not the one in use

    @property
    def numbers(self) -> str:
        """As they stand behind the name of a range; `regions/step_numbers.py` reads them."""
        new = "" if self.new is None else f", new = {self.new}"
        return f", batch = {self.batch}, tokens = {self.tokens}{new}"


def transformers(processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
    """A step of continuous batching: `prepare_next_batch` has moved the requests on already."""
    io = processor.inputs_and_outputs
    stream = io.compute_stream
    if hasattr(io, "io_pairs"):  # two batches are in flight at once
        io = io.io_pairs[io.current_pair].host_io
    prefills = decodes = tokens = new = 0
    for request in io.requests_in_batch:
        length, done = request.query_length, request.state.position_offset
        tokens += length
        new += bool(request.has_new_token)
        if done - length >= len(request.state.initial_tokens):
            decodes += 1
        else:
            prefills += 1
    return Step(_phase(prefills, decodes), prefills + decodes, tokens, new, stream)


def vllm(worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | str | None:
    """A step of a worker of vLLM V1; None where there is nothing to run."""
    output = _argument(args, kwargs, "scheduler_output")
    if not output.total_num_scheduled_tokens:
        return None
    transfer = getattr(getattr(worker, "vllm_config", None), "ec_transfer_config", None)
    if transfer is not None and not transfer.is_ec_consumer:  # it encodes images for others: no token is read
        return STEP
    guessed, cached = output.scheduled_spec_decode_tokens, output.scheduled_cached_reqs
    fresh = {request.req_id: request for request in output.scheduled_new_reqs}
    made = getattr(cached, "num_output_tokens", None)  # until 0.11, the worker alone knows
    count, total = len(output.num_scheduled_tokens), output.total_num_scheduled_tokens
    if made and total == count and not fresh and not guessed and all(made):  # most steps, and they are short
        return Step("decode_step", count, total, count)
    begun = dict(zip(cached.req_ids, _begun(worker, cached) if made is None else made))
    prefills = decodes = verifies = 0
    new: int | None = 0
    for name, tokens in output.num_scheduled_tokens.items():
        guesses = len(guessed.get(name) or ())
        if name in fresh or not begun[name] or tokens > 1 + guesses:  # the last: taken up again, all of it anew
            prefills += 1
            ends = _ends(fresh.get(name), tokens)
            new = None if new is None or ends is None else new + ends
        elif guesses:
            verifies += 1
            new = None  # how many are right is not known yet
        else:
            decodes += 1
            new = None if new is None else new + 1
    if verifies and getattr(getattr(worker, "model_config", None), "is_diffusion", False):
        # Its requests make all tokens of a piece of text at once, in many steps; they are scheduled as guesses.
        return Step("mixed_step" if prefills else STEP, count, total)
    return Step(_phase(prefills, decodes, verifies), count, total, new)


def _begun(worker: Any, cached: Any) -> list[bool]:
    """Whether requests are through with their prompts, by what the worker keeps of them."""
    known = worker.model_runner.requests
    return [done >= known[name].num_prompt_tokens for name, done in zip(cached.req_ids, cached.num_computed_tokens)]


def _ends(request: Any, tokens: int) -> int | None:
    """Tokens that come out of a new request: one, where its prompt is read to the end; of an embedding none."""
    # The first: with what it had made before it was pushed out, for that is read again.
    prompt = getattr(request, "prefill_token_ids", None) or getattr(request, "prompt_token_ids", None)
    if getattr(request, "pooling_params", None) is not None:
        return 0
    return None if prompt is None else int(request.num_computed_tokens + tokens >= len(prompt))


_SGLANG = {
    "EXTEND": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DECODE": "decode_step",
    "MIXED": "mixed_step",
    "TARGET_VERIFY": "verify",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
}


def sglang(runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | str | None:
    """A forward pass of SGLang, by its mode; the draft model has a runner of its own."""
    batch = _argument(args, kwargs, "forward_batch")
    mode = batch.forward_mode.name
    name = _SGLANG.get(mode, STEP)
    size = int(batch.batch_size)
    tokens = getattr(batch, "extend_num_tokens", None) if name in ("prefill", "mixed_step") else None
    if tokens is None:
        inputs = getattr(batch, "input_ids", None)
        tokens = size if mode == "DECODE" or inputs is None else inputs.shape[0]
    if runner.is_draft_worker:
        return Step("draft", size, int(tokens))
    if mode == "SPLIT_PREFILL":  # some of the layers: the others read the same tokens once more
        return name
    return Step(name, size, int(tokens), size if mode == "DECODE" else None)


def schedule_transformers(processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Scheduling of continuous batching, where there are requests: it is asked again and again while there are none."""
    queue = getattr(processor, "input_queue", None)
    busy = processor.scheduler.has_pending_requests() or (queue is not None and not queue.empty())
    return "schedule" if busy else None


def schedule_sglang(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Scheduling of SGLang, where there are requests: it goes round and round while there are none."""
    running = scheduler.running_batch
    busy = bool(scheduler.waiting_queue) or (running is not None and not running.is_empty())
    return "schedule" if busy else None


def _phase(prefills: int, decodes: int, verifies: int = 0) -> str:
    if prefills:
        return "mixed_step" if decodes or verifies else "prefill"
    if verifies:
        return "verify"
    return "decode_step" if decodes else STEP


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The first argument after self, which may be given by its name."""
    return args[0] if args else kwargs[name]
