"""What kind of work a kernel does, by rules over its name that are kept as data (`families.toml`)."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files

from attrs import define

OTHER = "other"  # no rule fits
MEMCPY = "memcpy"  # copies within the GPU and fills that are no kernels
HOST_COPY = "host copy"  # copies between host and GPU
GRAPH = "graph"  # CUDA graphs recorded as one block


@define(frozen=True)
class Family:
    """One rule."""

    name: str
    label: str
    pattern: re.Pattern[str]
    fusable: bool = False


@cache
def families() -> dict[str, Family]:
    """All families by name, in the order of the rules."""
    text = files("llm_perf_opt.analysis").joinpath("families.toml").read_text(encoding="utf-8")
    return {
        raw["name"]: Family(
            raw["name"], raw["label"], re.compile(raw["pattern"], re.IGNORECASE), raw.get("fusable", False)
        )
        for raw in tomllib.loads(text)["family"]
    }


@lru_cache(maxsize=65536)
def family_of(kernel_name: str) -> str:
    """The family of a kernel, from its full name; `other` where no rule fits."""
    # Parameter lists repeat template arguments and may run to many kilobytes: what matters comes first.
    head = kernel_name[:4000]
    return next((name for name, family in families().items() if family.pattern.search(head)), OTHER)


def label_of(family: str) -> str:
    own = {
        OTHER: "kernels of no known kind",
        MEMCPY: "memcpy and memset",
        HOST_COPY: "copies between host and GPU",
        GRAPH: "CUDA graphs recorded as one block",
    }
    return own.get(family) or families()[family].label


def is_fusable(family: str) -> bool:
    return family in families() and families()[family].fusable
