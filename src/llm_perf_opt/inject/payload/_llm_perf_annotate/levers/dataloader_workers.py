"""Batches are prepared in worker processes while the model works on the previous one."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from typing import Any

TITLE = "DataLoader workers"
RULES = ("host.data",)
NEEDS = ("data loaders without workers",)
GENERAL = True
CHANGES = "random numbers: each worker draws its own"
PATCH = "loader = DataLoader(dataset, …, num_workers=4, persistent_workers=True)"

_WORKERS = 4


def apply(program: Any) -> None:
    torch = program.torch
    loader, iterator = torch.utils.data.DataLoader, torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    reset = iterator._reset
    changed: weakref.WeakSet[Any] = weakref.WeakSet()
    load, signature = loader.__init__, inspect.signature(loader.__init__)
    workers = min(_WORKERS, max(os.cpu_count() or 2, 2))

    @functools.wraps(load)
    def with_workers(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if not given.get("num_workers"):
            kwargs.setdefault("persistent_workers", True)
            if len(args) > 5:  # given by its place
                args = *args[:5], workers, *args[6:]
            else:
                kwargs["num_workers"] = workers
            program.count("data loaders with workers")
            changed.add(self)
        load(self, *args, **kwargs)

    @functools.wraps(reset)
    def as_a_new_one(self: Any, given: Any, first_iter: bool = False) -> None:
        if given in changed and not first_iter:  # each epoch of the program draws a seed, and shuffles by the next
            torch.empty((), dtype=torch.int64).random_(generator=given.generator)
        reset(self, given, first_iter)

    loader.__init__, iterator._reset = with_workers, as_a_new_one


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("data loaders with workers", 0)
    return bool(count), f"{count} with workers" if count else "no DataLoader was made without workers"
