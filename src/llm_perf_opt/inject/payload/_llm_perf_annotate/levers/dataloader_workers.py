"""Batches made in worker processes, while the model works on the one before."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

TITLE = "DataLoader workers"
RULES = ("host.data",)
NEEDS = ("data loaders without workers",)
GENERAL = True
CHANGES = "random numbers: each worker draws its own"
PATCH = "loader = DataLoader(dataset, …, num_workers=4, persistent_workers=True)"

_WORKERS = 4


def apply(program: Any) -> None:
    loader = program.torch.utils.data.DataLoader
    load, signature = loader.__init__, inspect.signature(loader.__init__)
    workers = min(_WORKERS, max(os.cpu_count() or 2, 2))

    @functools.wraps(load)
    def with_workers(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if not given.get("num_workers"):
            kwargs["num_workers"] = workers
            kwargs.setdefault("persistent_workers", True)
            if len(args) > 5:  # given by its place
                args = args[:5]
            program.count("data loaders with workers")
        load(self, *args, **kwargs)

    loader.__init__ = with_workers


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("data loaders with workers", 0)
    return bool(count), f"{count} with workers" if count else "no DataLoader was made without workers"
