"""For models that mark their own parts: a protocol, and a base class that does it without further code.

    class Net(ProfileableModel):
        def __init__(self): ...
        def forward(self, x): ...

    Net().forward_with_nvtx(x)    # ranges: forward, and one for every part of Net

A model called plainly, `net(x)`, has no ranges and pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from llm_perf_opt.workloads.marks import mark

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # never called themselves: what is inside them is


@runtime_checkable
class NVTXProfileable(Protocol):
    """A model that can run with NVTX ranges around its parts."""

    def forward_with_nvtx(self, *args: Any, **kwargs: Any) -> Any:
        """The same result as calling the model, with ranges."""
        ...


class _Wait(int):
    """Whether ranges wait for the GPU; called, it waits."""

    def __call__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


class ProfileableModel(nn.Module):
    """An `nn.Module` that marks itself and its parts in domain `LLM`."""

    # The range around the whole; None for none.
    range_name: str | None = "forward"
    # How far down parts are marked: 1 is the modules assigned to this one, by the names they have here.
    range_depth: int = 1
    # Wait for the GPU before a range ends, so that a host clock around it sees the work. It slows the model
    # down, and no profiler needs it: they know a kernel's range from its launch. Set it to True or False;
    # `model.sync_after_range()` waits now.
    sync_after_range: Any = _Wait(False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(own := vars(cls).get("sync_after_range"), bool):
            cls.sync_after_range = _Wait(own)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _Wait(value) if name == "sync_after_range" and isinstance(value, int) else value)

    def forward_with_nvtx(self, *args: Any, **kwargs: Any) -> Any:
        """The same result as calling the model, with ranges around it and its parts."""
        with self._ranges_around_parts():
            if self.range_name is None:
                return self(*args, **kwargs)
            with self.marked(self.range_name):
                return self(*args, **kwargs)

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """A range for use inside of `forward`, with the same care for `sync_after_range`."""
        with mark(name):
            yield
            if self.sync_after_range:
                self.sync_after_range()

    @contextmanager
    def _ranges_around_parts(self) -> Iterator[None]:
        opened: list[Any] = []

        def before(name: str) -> Any:
            def hook(module: nn.Module, inputs: Any) -> None:
                part = self.marked(name)
                part.__enter__()
                opened.append(part)

            return hook

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            opened.pop().__exit__(None, None, None)

        with ExitStack() as hooks:
            # A failure inside a part leaves its range open: close what is left, innermost first.
            hooks.callback(_close_all, opened)
            for name, module in _parts(self, self.range_depth):
                hooks.callback(module.register_forward_pre_hook(before(name)).remove)
                hooks.callback(module.register_forward_hook(after).remove)
            yield


def _close_all(opened: list[Any]) -> None:
    while opened:
        opened.pop().__exit__(None, None, None)


def _parts(module: nn.Module, depth: int, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if depth < 1:
        return
    for name, child in module.named_children():
        if isinstance(child, _CONTAINERS):
            yield from _parts(child, depth, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child
            yield from _parts(child, depth - 1)
