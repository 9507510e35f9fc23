"""Stages of training beside the forward pass: backward and optimizer_step."""

from __future__ import annotations

import functools
from typing import Any, Callable

from torch.compiler import is_dynamo_compiling

from .stages import Stages
from .state import state


def annotate(torch: Any, stages: Stages) -> None:
    # Tensor.backward calls this one.
    torch.autograd.backward = _marked_backward(torch.autograd.backward, stages)
    # Every optimizer has its step wrapped by this when the first of its class is made. Hooks would do, were they
    # called after a step that fails.
    optimizer = torch.optim.Optimizer
    optimizer.profile_hook_step = staticmethod(_marking_steps(optimizer.profile_hook_step, stages))


def _marked_backward(backward: Callable[..., Any], stages: Stages) -> Callable[..., Any]:
    @functools.wraps(backward)
    def marked(*args: Any, **kwargs: Any) -> Any:
        # Checkpointing calls it from within.
        if is_dynamo_compiling() or state.in_backward:
            return backward(*args, **kwargs)
        stages.open("backward")
        state.in_backward = True
        try:
            return backward(*args, **kwargs)
        finally:
            state.in_backward = False
            stages.close()

    return marked


def _marking_steps(hook_step: Callable[..., Any], stages: Stages) -> Callable[..., Any]:
    @functools.wraps(hook_step)
    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        step = hook_step(function)

        @functools.wraps(step)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return step(*args, **kwargs)
            stages.open("optimizer_step")
            try:
                return step(*args, **kwargs)
            finally:
                stages.close()

        return marked

    return profile_hook_step
