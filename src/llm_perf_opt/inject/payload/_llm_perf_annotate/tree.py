"""Looks through a model once: which modules get a range, under which name, and which may be models themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

from torch import jit, nn

from .model import wrapped_name

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# Models inside a model (the decoder below a language head, a vision tower) are not deeper than this.
_DEEPEST_MODEL = 3


class Names(NamedTuple):
    """How much of a model is named."""

    depth: int = 0  # levels below the outermost module; 0: none
    fold: bool = False  # numbers in names become N: all layers are one region
    prefix: str = ""  # of every name
    longest: int = 0  # bytes of a name; 0: as long as it is


class Place(NamedTuple):
    """A module of a model."""

    module: Any
    name: str | None  # the path of attributes from the outermost module, where it gets a range
    may_be_outermost: bool  # a model in its own right, which programs may also call directly


def places(root: Any, names: Names) -> Iterator[Place]:
    """Every module below `root`, each once.

    Containers (ModuleList, ModuleDict, Sequential) do not count as a level, nor do wrappers (DDP, FSDP,
    torch.compile), which do not show in names either.
    """
    return _below(root, "", 0, False, names, {id(root)})


def _below(module: Any, path: str, level: int, in_container: bool, names: Names, seen: set[int]) -> Iterator[Place]:
    wrapped = wrapped_name(module)
    for attribute, child in module._modules.items():
        if child is None or id(child) in seen:
            continue
        seen.add(id(child))
        container = isinstance(child, _CONTAINERS)
        if attribute == wrapped:  # the wrapper has the range
            child_path, child_level, name = path, level, None
        else:
            child_path = f"{path}.{attribute}" if path else attribute
            # The children of a container are where the container is.
            child_level = level if container else level + 1
            named = (level + 1 <= names.depth) and not isinstance(child, (nn.ModuleList, nn.ModuleDict))
            name = _range_name(child_path, names) if named else None
        repeated = in_container or container
        scripted = isinstance(child, jit.ScriptModule)  # its modules are never called from Python
        model = bool(child._modules) and not in_container and child_level <= _DEEPEST_MODEL
        # A container is a model only where it is what a wrapper wraps.
        outermost = model and not scripted and (attribute == wrapped or not container)
        yield Place(child, name, outermost)
        if not scripted:
            yield from _below(child, child_path, child_level, repeated, names, seen)


def _range_name(path: str, names: Names) -> str:
    path = path.encode("utf-8", "replace").decode()  # NVTX takes UTF-8 only
    if names.fold:
        path = ".".join("N" if part.isdigit() else part for part in path.split("."))
    return names.prefix + path if not names.longest else _shortened(names.prefix, path, names.longest)


def _shortened(prefix: str, path: str, longest: int) -> str:
    """A name of so many bytes at the most; of a long path the end, after a number that tells it from others."""
    whole = path.encode()
    if len(prefix) + len(whole) <= longest:
        return prefix + path
    number = f"{crc32(whole):08x}."
    return prefix + number + whole[len(prefix) + len(number) - longest :].decode(errors="ignore")
