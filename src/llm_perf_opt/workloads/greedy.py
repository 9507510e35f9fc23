"""Greedy decoding, stage by stage: prefill up to the first token, then one step after the other.

`model.generate()` does the same in one go, with no place to put ranges. This loop gives the same tokens; it
leaves out the host work that is only there for options nobody asked for here. Between stages the watch
waits for the device, so that a stage's range ends with its work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.workloads.hf_models import decode_mode
from llm_perf_opt.workloads.model_session import Watch


@define(frozen=True)
class Prompt:
    """A batch on the device: ids or embeddings, padded on the left where the lengths differ."""

    inputs: dict[str, Any]  # `input_ids` or `inputs_embeds`
    mask: Any  # 1 where there is a token; None where nothing is padded
    lengths: list[int]  # without padding

    @property
    def width(self) -> int:
        return max(self.lengths)

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def device(self) -> Any:
        return next(iter(self.inputs.values())).device


def padded(sequences: Sequence[Sequence[int]], padding: int, device: Any) -> Prompt:
    """Token ids of unequal length as one tensor."""
    width = max(len(tokens) for tokens in sequences)
    ids = [[padding] * (width - len(tokens)) + list(tokens) for tokens in sequences]
    lengths = [len(tokens) for tokens in sequences]
    mask = None
    if min(lengths) < width:
        mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths], device=device)
    return Prompt({"input_ids": torch.tensor(ids, device=device)}, mask, lengths)


class Chooser:
    """Picks the next token of every sequence, and knows which sequences have ended."""

    def __init__(self, batch: int, ends: Sequence[int], padding: int, device: Any) -> None:
        self.can_end = bool(ends)
        self._ends = torch.tensor(list(ends), device=device, dtype=torch.long)
        self._padding = padding
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)

    def reset(self) -> None:
        self.ended.zero_()

    def __call__(self, logits: Any) -> Any:
        tokens = logits[:, -1].argmax(-1)
        if self.can_end:
            tokens = tokens.masked_fill(self.ended, self._padding)
            self.ended |= torch.isin(tokens, self._ends)
        return tokens

    def all_ended(self) -> bool:
        """Reading this makes the host wait for the device, as `generate()` does at every step."""
        return self.can_end and bool(self.ended.all())


def positions(mask: Any) -> Any:
    """Positions that begin at the first real token of each sequence."""
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)


class GreedyDecoder:
    """Generates with a cache that grows, as `generate()` does by default."""

    def __init__(self, model: Any, *, ends: Sequence[int], padding: int, new_tokens: int) -> None:
        self.model = model
        self.ends = list(ends)
        self.padding = padding
        self.new_tokens = new_tokens
        accepted = inspect.signature(model.forward).parameters
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.takes_positions = "position_ids" in accepted

    def ready(self, prompt: Prompt) -> None:
        """Whatever must happen before the first run with a prompt of this shape."""

    def begin(self, prompt: Prompt) -> None:
        """Whatever must happen before every run, outside of all ranges."""

    def generate(self, prompt: Prompt, watch: Watch, inputs: Callable[[], dict[str, Any]] | None = None) -> Any:
        """New tokens of every sequence, as one tensor on the device. Runs the stages `prefill` and `decode`.

        `inputs` makes the first inputs inside of `prefill`, where the prompt alone does not have them."""
        chooser = self._new_chooser(prompt)
        with watch.stage("prefill"):
            tokens, cache = self._prefill(prompt, prompt.inputs if inputs is None else inputs(), chooser)
        taken = [tokens]
        if self.new_tokens > 1 and not chooser.all_ended():
            with watch.stage("decode"), decode_mode(self.model):
                step = self._stepper(prompt, chooser, tokens, cache)
                for _ in range(self.new_tokens - 1):
                    with watch.step("decode_step"):
                        taken.append(step())
                        if chooser.all_ended():
                            break
        return torch.stack(taken, dim=1)

    def call(self, inputs: dict[str, Any], mask: Any, position_ids: Any, cache: Any) -> Any:
        """One forward of the model."""
        if mask is not None:
            inputs = inputs | {"attention_mask": mask}
            if self.takes_positions:
                inputs["position_ids"] = position_ids
        out = self.model(**inputs, past_key_values=cache, use_cache=True, **self.last_only)
        if getattr(out, "past_key_values", None) is None:
            raise UserError(
                f"{type(self.model).__name__} keeps no cache of keys and values, so it has no decode steps to run.",
                "Choose a model of the usual decoder kind.",
                ExitCode.WORKLOAD_FAILED,
            )
        return out

    def _prefill(self, prompt: Prompt, inputs: dict[str, Any], chooser: Chooser) -> tuple[Any, Any]:
        where = None if prompt.mask is None else positions(prompt.mask)
        out = self.call(inputs, prompt.mask, where, self._new_cache(prompt))
        return chooser(out.logits), out.past_key_values

    def _new_chooser(self, prompt: Prompt) -> Chooser:
        return Chooser(prompt.batch, self.ends, self.padding, prompt.device)

    def _new_cache(self, prompt: Prompt) -> Any:
        return None  # the model makes the one that suits it

    def _stepper(self, prompt: Prompt, chooser: Chooser, tokens: Any, cache: Any) -> Callable[[], Any]:
        mask = prompt.mask
        where: Any = None if mask is None else positions(mask)[:, -1:]

        def step() -> Any:
            nonlocal tokens, mask, where, cache
            if mask is not None:
                mask = torch.cat([mask, mask.new_ones((prompt.batch, 1))], dim=-1)
                where = where + 1
            out = self.call({"input_ids": tokens[:, None]}, mask, where, cache)
            tokens, cache = chooser(out.logits), out.past_key_values
            return tokens

        return step


def trimmed(tokens: Any, ends: Sequence[int]) -> list[list[int]]:
    """The tokens of each sequence on the host, up to and with the one that ended it."""
    result = []
    for row in tokens.tolist():
        stop = next((at for at, token in enumerate(row) if token in ends), len(row) - 1)
        result.append(row[: stop + 1])
    return result
