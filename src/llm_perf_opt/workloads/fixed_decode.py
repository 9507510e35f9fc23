"""Decode steps whose tensors never move: what CUDA graphs and torch.compile need.

The cache has its full length from the start, token and position live in buffers that every step updates in
place. So one step can be captured as a CUDA graph and replayed, or compiled once for all steps. Prefill
stays as it is, as in `generate()`. Prompts of the same shape share one capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.workloads.device import import_transformers
from llm_perf_opt.workloads.greedy import Chooser, GreedyDecoder, Prompt, positions
from llm_perf_opt.workloads.hf_models import decode_mode

_WARM_UP_STEPS = 2


@define
class _Fixed:
    """Everything of one shape that a captured step reads and writes."""

    cache: Any
    chooser: Chooser
    tokens: Any
    where: Any
    mask: Any
    step: Callable[[], None]

    def reset(self) -> None:
        self.cache.reset()
        self.chooser.reset()
        self.where.zero_()


class FixedDecoder(GreedyDecoder):
    """Generates with a cache of fixed length, and decode steps captured or compiled."""

    def __init__(
        self,
        model: Any,
        *,
        ends: Sequence[int],
        padding: int,
        new_tokens: int,
        compile_mode: str = "",
        capture: Callable[[Callable[[], None]], Callable[[], None]] = lambda step: step,
    ) -> None:
        super().__init__(model, ends=ends, padding=padding, new_tokens=new_tokens)
        self._capture = capture
        self._compile_mode = compile_mode
        self._forward = model
        self._shapes: dict[tuple[int, int, bool], _Fixed] = {}

    def ready(self, prompt: Prompt) -> None:
        """Capture or compile the step for prompts of this shape, where that has not been done."""
        if _shape(prompt) in self._shapes:
            return
        fixed = self._fixed(prompt)
        with torch.no_grad(), decode_mode(self.model):
            try:
                for _ in range(_WARM_UP_STEPS):  # the first fills the cache with tensors, others compile
                    fixed.step()
                    fixed.reset()
                fixed.step = self._capture(fixed.step)
            except UserError:
                raise
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                how = "model.compile" if self._compile_mode else "model.cuda_graphs"
                raise UserError(
                    f"{how} does not work for {type(self.model).__name__}: {reason}",
                    f"Run it without {how}.",
                    ExitCode.WORKLOAD_FAILED,
                ) from error
        fixed.reset()
        self._shapes[_shape(prompt)] = fixed

    def _fixed(self, prompt: Prompt) -> _Fixed:
        length = prompt.width + self.new_tokens
        cache = import_transformers().StaticCache(config=self.model.config, max_cache_len=length)
        if any(cache.is_sliding) or not cache.is_compileable:
            raise UserError(
                f"{type(self.model).__name__} has layers with a sliding window or another cache that is moved at every "
                "step, and captured or compiled decode steps need one that stays where it is.",
                "Run it without model.cuda_graphs and model.compile, or set model.config.sliding_window=null.",
            )
        if self._compile_mode and self._forward is self.model:
            self._forward = torch.compile(self.model.forward, mode=self._compile_mode, dynamic=False)
        device = prompt.device
        chooser = Chooser(prompt.batch, self.ends, self.padding, device)
        tokens = torch.zeros(prompt.batch, dtype=torch.long, device=device)
        where = torch.zeros((prompt.batch, 1), dtype=torch.long, device=device)
        mask = None if prompt.mask is None else torch.ones((prompt.batch, length), dtype=torch.long, device=device)
        extra: dict[str, Any] = {} if mask is None else {"attention_mask": mask}
        if self.takes_positions:
            extra["position_ids"] = where

        def step() -> None:
            if self._compile_mode:
                torch.compiler.cudagraph_mark_step_begin()
            out = self._forward(
                input_ids=tokens[:, None], past_key_values=cache, use_cache=True, **extra, **self.last_only
            )
            tokens.copy_(chooser(out.logits))
            where.add_(1)

        return _Fixed(cache, chooser, tokens, where, mask, step)

    def begin(self, prompt: Prompt) -> None:
        self.ready(prompt)
        self._shapes[_shape(prompt)].reset()

    def _new_chooser(self, prompt: Prompt) -> Chooser:
        return self._shapes[_shape(prompt)].chooser

    def _new_cache(self, prompt: Prompt) -> Any:
        return self._shapes[_shape(prompt)].cache

    def _stepper(self, prompt: Prompt, chooser: Chooser, tokens: Any, cache: Any) -> Callable[[], Any]:
        fixed = self._shapes[_shape(prompt)]
        fixed.tokens.copy_(tokens)
        if prompt.mask is None:
            fixed.where.fill_(prompt.width)
        else:
            fixed.where.copy_(positions(prompt.mask)[:, -1:] + 1)
            fixed.mask[:, : prompt.width] = prompt.mask

        def step() -> Any:
            fixed.step()
            return fixed.tokens.clone()

        return step


def _shape(prompt: Prompt) -> tuple[int, int, bool]:
    return prompt.batch, prompt.width, prompt.mask is not None


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph: recorded once, replayed ever after."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # libraries choose and allocate what they may not while a graph is recorded
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda: graph.replay()
