"""Which rank of a job this process is: the very code that asks inside the profiled program, for llm-perf itself."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from attrs import define

_MODULE = "llm_perf_opt.inject.payload._llm_perf_annotate.place"


@define(frozen=True)
class Place:
    """A process of a job; see the payload's `Place`."""

    launcher: str
    rank: int
    size: int | None
    local: int | None
    node: str
    nodes: int | None
    job: str

    @property
    def label(self) -> str:
        return f"rank {self.rank} on {self.node}"


def place_in_job(environ: Mapping[str, str] | None = None) -> Place | None:
    """None where no launcher says that there are ranks, or where there is only one."""
    found = importlib.import_module(_MODULE).place_of(os.environ if environ is None else environ)
    return None if found is None else Place(*found)
