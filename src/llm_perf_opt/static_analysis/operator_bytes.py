"""Bytes one call of an operator reads and writes.

The rule is that of a kernel which reads each of its inputs from memory once and writes each result once:
no cache, no fusion. A view costs nothing; an expanded tensor counts the memory it really has; a table of
which rows are taken counts those rows; what is changed in place is counted once each way.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import cattrs
import torch
from attrs import define

from llm_perf_opt.package_data import read_toml


@define(frozen=True)
class OperatorRules:
    """`operators.toml`: how operators are counted that torch has no FLOP formula for, by their names."""

    free: frozenset[str]
    moves_data: frozenset[str]
    overwrites: frozenset[str]
    reads_rows: dict[str, int]
    writes_rows: dict[str, int]
    flops_per_element: dict[str, int]
    flops_per_input: dict[str, int]
    softmax_flops_per_score: int


@cache
def operator_rules() -> OperatorRules:
    return cattrs.structure(read_toml(__package__, "operators.toml"), OperatorRules)


@define(frozen=True)
class Touch:
    """Part of a storage that a call reads or writes."""

    storage: int  # identifies the storage while it lives
    storage_bytes: int
    view: tuple[Any, ...]  # identifies the part
    bytes: int


@define(frozen=True)
class Signature:
    """What the schema of an operator says about its arguments; looked at once for each operator."""

    positions: dict[str, int]
    written: tuple[int, ...]  # arguments changed in place
    read_first: bool  # those are read before they are written
    outputs_fresh: tuple[bool, ...]  # for each result: newly made, not a view and not an argument
    makes_views: bool  # every tensor that is returned is a view, and nothing is written

    def by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, Any]]:
        """Arguments with their positions in the schema."""
        return [*enumerate(args), *((self.positions.get(key, -1), value) for key, value in kwargs.items())]


def signature_of(func: Any, name: str, rules: OperatorRules) -> Signature:
    schema = func._schema
    changed = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    fresh = tuple(returned.alias_info is None for returned in schema.returns)
    positions = {argument.name: position for position, argument in enumerate(schema.arguments)}
    return Signature(
        positions=positions,
        written=tuple(positions[argument.name] for argument in changed),
        read_first=name not in rules.overwrites and not any(argument.is_out for argument in changed),
        outputs_fresh=fresh,
        makes_views=bool(fresh) and not any(fresh) and not changed,
    )


def tensors_in(value: Any) -> list[Any]:
    """The tensor, or those in a list (operators nest no deeper)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []


def elements(tensor: Any) -> int:
    """Elements that lie in memory: those of an expanded dimension are one and the same."""
    return prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)


def touch(tensor: Any, most_elements: int | None = None) -> Touch:
    count = elements(tensor)
    if most_elements is not None:
        count = min(count, most_elements)
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    bytes_ = min(count * tensor.element_size(), size)
    return Touch(
        storage=storage._cdata,
        storage_bytes=size,
        view=(tensor.storage_offset(), tensor.shape, tensor.stride(), count),
        bytes=bytes_,
    )


def reads_and_writes(
    name: str, signature: Signature, arguments: list[tuple[int, Any]], out: Any, rules: OperatorRules
) -> tuple[list[Touch], list[Touch]]:
    """What the call reads and what it writes."""
    reads, writes = [], []
    results = list(out) if isinstance(out, list | tuple) else [out]
    table = rules.reads_rows.get(name)
    rows_given = rules.writes_rows.get(name)
    most = None
    if rows_given is not None:
        by = dict(arguments)
        given = tensors_in(by.get(rows_given))
        # index_put_ takes values that are spread over the places the index names
        index = [tensor for tensor in tensors_in(by.get(1)) if rows_given == 2 and name.endswith(("put_", "impl_"))]
        most = max((tensor.numel() for tensor in (*given, *index)), default=None)
    for position, value in arguments:
        for tensor in tensors_in(value):
            if position in signature.written:
                writes.append(touch(tensor, most))
                if signature.read_first and rows_given is None:
                    reads.append(touch(tensor))
                elif rows_given is not None and "add" in name:
                    reads.append(touch(tensor, most))
            elif position == table:
                taken = sum(result.numel() for result in results if isinstance(result, torch.Tensor))
                reads.append(touch(tensor, taken))
            else:
                reads.append(touch(tensor))
    fresh = signature.outputs_fresh
    for number, result in enumerate(results):
        if fresh[number] if number < len(fresh) else fresh[:1] == (True,):
            writes += [touch(tensor) for tensor in tensors_in(result)]
    return _once(reads), _once(writes)


def _once(touches: list[Touch]) -> list[Touch]:
    """The same part of the same storage counts once, as in `x * x`."""
    return list({(found.storage, found.view): found for found in touches}.values())


def moved(touches: list[Touch]) -> int:
    """Bytes of these parts; parts of one storage that overlap count no more than the storage holds."""
    sums: dict[int, tuple[int, int]] = {}
    for found in touches:
        bytes_, size = sums.get(found.storage, (0, found.storage_bytes))
        sums[found.storage] = (bytes_ + found.bytes, size)
    return sum(min(bytes_, size) for bytes_, size in sums.values())
