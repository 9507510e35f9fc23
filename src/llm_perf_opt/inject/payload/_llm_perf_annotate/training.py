"""Stages of training beside the forward pass: backward and optimizer_step."""

from __future__ import annotations

import functools
from typing import Any, Callable

from torch.compiler import is_dynamo_compiling

from .stages import Stages, state


def annotate(torch: Any, stages: Stages) -> None:
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def marked_backward(*args: Any, **kwargs: Any) -> Any:
        # Checkpointing calls it from within.
        if is_dynamo_compiling() or state.in_backward:
            return backward(*args, **kwargs)
        state.in_backward = True
        try:
            return stages.run("backward", backward, *args, **kwargs)
        finally:
            state.in_backward = False

    torch.autograd.backward = marked_backward  # Tensor.backward calls this one
    # Every optimizer has its step wrapped by this when the first of its class is made. Hooks would do, were they
    # called after a step that fails.
    hook_step = torch.optim.Optimizer.profile_hook_step

    @functools.wraps(hook_step)
    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        step = hook_step(function)

        @functools.wraps(step)
        def marked_step(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return step(*args, **kwargs)
            return stages.run("optimizer_step", step, *args, **kwargs)

        return marked_step

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)
