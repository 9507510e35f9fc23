"""What an operator of a PyTorch trace was given: its tensors as one short text, and back.

A trace repeats the same shapes a thousand times; as texts they are one string each, in the list of all strings.
`bf16[8192,768] bf16[50257,768]`: one word for each input, `-` for one that is no tensor; lists are
written out. A letter behind it says how the tensor lies in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeGuard

from attrs import define

_SHORT = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "unsigned char": "uint8",
    "signed char": "int8",
    "bool": "bool",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
_BYTES = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp64": 8,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
    "fp8": 1,
}
_WORD = re.compile(r"(\w+)\[([\d,]*)\]([a-z]?)")
_LARGEST = 1 << 40  # of a dimension
_MOST_INPUTS = 16
_LIST = "list"  # of tensors: their type is not recorded
EXPANDED, STRIDED = (
    "x",
    "s",
)  # how a tensor lies in memory: some elements stand for several, or not one behind the other


@define(frozen=True)
class Tensor:
    """One input."""

    dtype: str  # "bf16" …; as recorded where it is none of the usual
    dims: tuple[int, ...]
    layout: str = ""  # EXPANDED | STRIDED | "": one behind the other, or not known

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int | None:
        """None where the type is not known."""
        return self.elements * _BYTES[self.dtype] if self.dtype in _BYTES else None


def as_text(types: Sequence[object], dims: Sequence[object], strides: Sequence[object] = ()) -> str:
    """The inputs of an operator as one text; "" where none is a tensor."""
    words: list[str] = []
    kinds, padded = [*types, *([""] * len(dims))], [*strides, *([None] * len(dims))]
    for kind, sizes, steps in zip(kinds, dims[:_MOST_INPUTS], padded, strict=False):
        if isinstance(sizes, list) and sizes and isinstance(sizes[0], list):
            words += [_word(_LIST, inner, None) for inner in sizes[:_MOST_INPUTS]]
        else:
            words.append(_word(kind, sizes, steps))
    return " ".join(words) if any(word != "-" for word in words) else ""


def _word(kind: object, sizes: object, steps: object) -> str:
    if not (isinstance(kind, str) and _are_sizes(sizes)):
        return "-"
    short = _SHORT.get(kind) or re.sub(r"\W", "", kind)[:20] or "other"
    layout = _layout(sizes, steps) if _are_sizes(steps) and len(steps) == len(sizes) else ""
    return f"{short}[{','.join(map(str, sizes))}]{layout}"


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(n) is int and 0 <= n < _LARGEST for n in value)


def _layout(sizes: list[int], steps: list[int]) -> str:
    if any(step == 0 and size > 1 for size, step in zip(sizes, steps, strict=True)):
        return EXPANDED
    expected = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size > 1 and step != expected:
            return STRIDED
        expected *= size
    return ""


@lru_cache(maxsize=1 << 14)
def from_text(text: str) -> tuple[Tensor | None, ...]:
    """The inputs in their order; None for what is no tensor."""
    found = (_WORD.fullmatch(word) for word in text.split(" "))
    return tuple(word and Tensor(word[1], tuple(map(int, word[2].split(","))), word[3]) for word in found)
