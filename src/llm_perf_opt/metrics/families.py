"""What kind of work a kernel does, by rules over its name that are kept as data (`families.toml`)."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from attrs import define

from llm_perf_opt.package_data import read_toml

COLLECTIVE = "collective"
OTHER = "other"  # no rule fits
MEMCPY = "memcpy"  # copies within the GPU and fills that are no kernels
HOST_COPY = "host copy"  # copies between host and GPU
PEER_COPY = "peer copy"  # copies between GPUs
MIGRATION = "migration"  # of pages of unified memory
GRAPH = "graph"  # CUDA graphs recorded as one block
_PARENTHESIS = re.compile(r"[()]")
MULTIPLYING = ("gemm", "attention", "convolution")  # families whose work is FLOPs


@define(frozen=True)
class Family:
    """One kind of work."""

    name: str
    label: str
    pattern: str
    fusable: bool = False


@define(frozen=True)
class Rule:
    """Names that fit a pattern are of a family."""

    family: str
    pattern: str

    def fits(self, name: str) -> bool:
        """Does the rule fit a name, given in lower case?"""
        for word, regex in _alternatives(self.pattern):  # no generator: a recording may have a hundred thousand names
            if word in name and (regex is None or regex.search(name) is not None):
                return True
        return False


@cache
def _alternatives(pattern: str) -> tuple[tuple[str, re.Pattern[str] | None], ...]:
    """The parts of a pattern, each with a word without which it cannot fit; None: the word is all there is to it.

    As one expression, Python tries every part at every character: ten milliseconds for a long name. Most names lack
    most of the words, and a word is found in no time.
    """
    parts = re.split(r"\|(?![^(]*\))", pattern.lower())  # not inside parentheses; none are nested
    found = []
    for part in parts:
        # What is always there: no group, no class, nothing that may be left out.
        certain = re.sub(r"\([^)]*\)[?*+]?|\[[^]]*\][?*+]?|\\.[?*+]?|.[?*]|[\^$]", "\0", part)
        word = max(certain.split("\0"), key=len)
        found.append((word, None if word == part else re.compile(part)))
    return tuple(found)


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    return {raw["name"]: Family(**raw) for raw in read_toml(__package__, "families.toml")["family"]}


@cache
def rules() -> tuple[Rule, ...]:
    """In their order: what generated names say outright, then the patterns of the families."""
    named = [Rule(**raw) for raw in read_toml(__package__, "families.toml")["generated"]]
    return (*named, *(Rule(family.name, family.pattern) for family in families().values()))


def any_case(family: str) -> str:
    """The pattern of a family for an engine that knows upper from lower case and no flags, as that of ncu."""
    return re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", families()[family].pattern.lower())


@lru_cache(maxsize=1 << 18)  # fewer, and of a small hostile file every name is looked up anew, three times
def family_of(kernel_name: str) -> str:
    """The family of a kernel, from its full name; `other` where no rule fits."""
    # Parameter lists repeat template arguments and may run to many kilobytes: what matters comes first. What a kernel
    # is given (a state of random numbers, say) is not what it does.
    head = _without_parameters(kernel_name[:4000]).lower()
    return next((rule.family for rule in rules() if rule.fits(head)), OTHER)


def _without_parameters(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for found in reversed(list(_PARENTHESIS.finditer(name))):
        depth += 1 if found[0] == ")" else -1
        if not depth:
            return name[: found.start()] or name
    return name


def label_of(family: str) -> str:
    own = {
        OTHER: "kernels of no known kind",
        MEMCPY: "memcpy and memset",
        HOST_COPY: "copies between host and GPU",
        PEER_COPY: "copies between GPUs",
        MIGRATION: "pages of unified memory that move",
        GRAPH: "CUDA graphs recorded as one block",
    }
    return own.get(family) or families()[family].label


def is_fusable(family: str) -> bool:
    return family in families() and families()[family].fusable


# torch.compile names a kernel after what it was made of: triton_poi_fused_add_gelu_3.
_INDUCTOR = re.compile(r"triton_\w{3}_fused_(?P<operators>\w+?)_\d+$")


def fused_operators(name: str) -> str:
    """The operators that torch.compile fused into a kernel, as its name has them; empty for all others."""
    found = _INDUCTOR.match(name)
    return f"fused {found['operators']}" if found else ""
