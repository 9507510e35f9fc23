"""Runs a stage once and counts every operator of it: FLOPs, bytes, calls.

Works like torch's own FLOP counter, with its formulas, and sees what that one does not: bytes, the
operators without a formula, and experts (see `matrix_flops`). Meant for the meta device, where a model of
any size runs in a second because nothing is computed.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import define
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.static_analysis import operator_bytes
from llm_perf_opt.static_analysis.counts import (
    ESTIMATED,
    MATRIX,
    MOVES_DATA,
    NOT_COUNTED,
    AttentionShape,
    MatrixShape,
    OperatorCount,
    StageCount,
)
from llm_perf_opt.static_analysis.matrix_flops import has_formula, is_grouped, matrix_flops
from llm_perf_opt.static_analysis.operator_bytes import Signature, Touch, moved, tensors_in
from llm_perf_opt.static_analysis.stage import StaticStage

EXPERTS_NOTE = (
    "The experts were counted in transformers' grouped_mm form: their eager form loops over the experts that "
    "tokens chose, and tensors on the meta device have no values. The FLOPs are the same; "
    "sorting the tokens by expert is added, and one product stands for the products of all experts."
)


@define(frozen=True)
class Known:
    """What is the same for all calls of one operator."""

    name: str
    packet: Any
    composite: bool  # made of other operators, which are counted instead
    matrix: bool
    free: bool
    signature: Signature


class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator torch dispatches while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = operator_bytes.operator_rules()
        self.known: dict[Any, Known] = {}
        self.rows: dict[tuple[str, str, str], OperatorCount] = {}
        self.matrices: Counter[MatrixShape] = Counter()
        self.attention: Counter[AttentionShape] = Counter()
        self.free_calls = 0
        self.last_operator = ""
        self.notes: list[str] = []
        self._made: set[int] = set()  # storages made by the stage itself
        self._found: dict[int, dict[tuple[Any, ...], Touch]] = {}  # parts of others it read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = self.known.get(func) or self._get_to_know(func)
        self.last_operator = known.name
        if known.composite:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = self._run(func, known, args, kwargs)
        if known.free:
            self.free_calls += 1
            if known.signature.outputs_fresh[:1] == (True,):  # an allocation
                self._made.update(tensor.untyped_storage()._cdata for tensor in tensors_in(out))
        else:
            self._count(known, args, kwargs, out)
        return out

    def _get_to_know(self, func: Any) -> Known:
        packet = func._overloadpacket
        name = str(packet)
        signature = operator_bytes.signature_of(func, name, self.rules)
        matrix = has_formula(packet)
        composite_key = torch._C.DispatchKey.CompositeImplicitAutograd
        known = Known(
            name=name,
            packet=packet,
            composite=not matrix
            and (
                composite_key in func.py_kernels
                or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite_key)
            ),
            matrix=matrix,
            free=name in self.rules.free or signature.makes_views,
            signature=signature,
        )
        self.known[func] = known
        return known

    @staticmethod
    def _run(func: Any, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on_meta = bool(args) and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta"
        if on_meta and known.name == "aten.scaled_dot_product_attention":
            # What a fused kernel returns: the layout of the query as the projections left it, so that joining
            # the heads is a view. Taken apart, as torch would on this device, it would be a copy.
            query, value = args[0], args[2]
            *lead, heads, queries, _ = query.shape
            return query.new_empty((*lead, queries, heads, value.shape[-1])).transpose(-3, -2)
        if on_meta and is_grouped(known.packet) and (args[0].dim(), args[1].dim()) == (2, 3):
            # torch checks here what one kernel asks of widths and alignment; other forms of experts do without
            return args[0].new_empty((args[0].shape[0], args[1].shape[2]))
        return func(*args, **kwargs)

    def _count(self, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        arguments = known.signature.by_position(args, kwargs)
        inputs = [tensor for _, value in arguments for tensor in tensors_in(value)]
        reads, writes = operator_bytes.reads_and_writes(known.name, known.signature, arguments, out, self.rules)
        if is_grouped(known.packet):
            reads = _touched_experts(args, reads)
        dtype = _dtype(inputs, out)
        treatment, flops, estimated, formula = self._flops(known, dtype, inputs, args, kwargs, out)
        row = self.rows.setdefault((known.name, dtype, treatment), OperatorCount(known.name, dtype, treatment))
        row.calls += 1
        row.matrix_flops += flops
        row.estimated_flops += estimated
        row.formula = formula or row.formula
        row.bytes_read += moved(reads)
        row.bytes_written += moved(writes)
        for found in reads:
            if found.storage not in self._made:
                self._found.setdefault(found.storage, {})[found.view] = found
        given = {tensor.untyped_storage()._cdata for tensor in inputs}
        self._made.update(found.storage for found in writes if found.storage not in given)

    def _flops(
        self, known: Known, dtype: str, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> tuple[str, int, int, str]:
        """Treatment, matrix FLOPs, estimated FLOPs, and whose formula gave the matrix FLOPs."""
        rules, name = self.rules, known.name
        if known.matrix:
            try:
                named = dict(zip(known.signature.positions, args, strict=False)) | kwargs
                flops, shape, formula = matrix_flops(known.packet, name, dtype, args, kwargs, named, out)
            except Exception as error:  # a formula of another torch version; the operator is still listed
                self.note(f"The FLOP formula of {name} failed ({type(error).__name__}): it is listed as not counted.")
                return NOT_COUNTED, 0, 0, ""
            estimated = 0
            if isinstance(shape, AttentionShape):
                self.attention[shape] += 1
                estimated = rules.softmax_flops_per_score * shape.scores
            elif shape is not None:
                self.matrices[shape] += 1
            return MATRIX, flops, estimated, formula
        if name in rules.moves_data:
            return MOVES_DATA, 0, 0, ""
        results = tensors_in(out)
        floating = [t for t in (*inputs, *results) if t.is_floating_point() or t.is_complex()]
        if name in rules.flops_per_input and inputs:
            return self._estimated(floating, rules.flops_per_input[name] * inputs[0].numel())
        per_element = rules.flops_per_element.get(name)
        if per_element is None and torch.Tag.pointwise in getattr(known.packet, known.packet.overloads()[0]).tags:
            per_element = 1
        if per_element is not None and results:
            return self._estimated(floating, per_element * results[0].numel())
        return NOT_COUNTED, 0, 0, ""

    @staticmethod
    def _estimated(floating: list[Any], flops: int) -> tuple[str, int, int, str]:
        # arithmetic with integers and truth values (positions, masks) has no floating-point operations
        return (ESTIMATED, 0, flops, "") if floating else (MOVES_DATA, 0, 0, "")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def result(self, stage: StaticStage, failure: str = "") -> StageCount:
        rows = sorted(self.rows.values(), key=lambda row: (row.matrix_flops, row.bytes), reverse=True)
        distinct = sum(moved(list(parts.values())) for parts in self._found.values())
        return StageCount(
            stage=stage.name,
            repeats=stage.repeats,
            operators=rows,
            matrices=sorted(self.matrices.items(), key=lambda item: -item[0].flops * item[1]),
            attention=list(self.attention.items()),
            distinct_bytes_read=distinct,
            free_calls=self.free_calls,
            failure=failure,
            notes=self.notes,
        )


def _dtype(inputs: list[Any], out: Any) -> str:
    tensors = [*inputs, *tensors_in(out)]
    floating = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    chosen = (floating or tensors)[:1]
    return str(chosen[0].dtype).removeprefix("torch.") if chosen else ""


def _touched_experts(args: tuple[Any, ...], reads: list[Touch]) -> list[Touch]:
    """A grouped product reads the matrices of groups that have rows: at most one for each row."""
    rows, weights = args[0], args[1]
    if rows.dim() != 2 or weights.dim() != 3:
        return reads
    groups = weights.shape[0]
    whole = operator_bytes.touch(weights)
    part = operator_bytes.touch(weights, weights[0].numel() * min(groups, rows.shape[0]))
    return [part if (found.storage, found.view) == (whole.storage, whole.view) else found for found in reads]


@contextlib.contextmanager
def experts_without_data(note: Callable[[str], None]) -> Iterator[None]:
    """Lets mixture-of-experts layers of transformers run on the meta device, whichever form was chosen."""
    moe = sys.modules.get("transformers.integrations.moe")
    interface = getattr(moe, "ALL_EXPERTS_FUNCTIONS", None)
    grouped = getattr(moe, "grouped_mm_experts_forward", None)
    choose = getattr(interface, "get_interface", None)  # not in the first versions
    if interface is None or grouped is None or choose is None:
        yield
        return

    def choose_without_data(implementation: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
        chosen: Callable[..., Any] = choose(implementation, default)
        if chosen is not default:
            return chosen

        def forward(module: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            if hidden_states.device.type != "meta":
                return chosen(module, hidden_states, *args, **kwargs)
            note(EXPERTS_NOTE)
            return grouped(module, hidden_states, *args, **kwargs)

        return forward

    interface.get_interface = choose_without_data
    try:
        yield
    finally:
        del interface.get_interface  # the class's own shows again


@contextlib.contextmanager
def no_autocast_on_meta() -> Iterator[None]:
    """Models switch autocast off, or ask whether it is on, for the device they run on; torch refuses that for meta."""
    real, real_question = torch.autocast, torch.is_autocast_enabled

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if device_type == "meta" else real(device_type, *args, **kwargs)

    def is_autocast_enabled(*device_type: str) -> bool:
        return device_type != ("meta",) and bool(real_question(*device_type))

    torch.autocast, torch.is_autocast_enabled = autocast, is_autocast_enabled
    try:
        yield
    finally:
        torch.autocast, torch.is_autocast_enabled = real, real_question


def count_stage(stage: StaticStage) -> StageCount:
    """Runs the stage once. A stage that cannot run without values ends with a reason, not with an error."""
    counter = OperatorCounter()
    failure = ""
    # In inference mode operators arrive whole, attention above all, and not as their parts.
    with torch.inference_mode(), no_autocast_on_meta(), experts_without_data(counter.note):
        try:
            with counter:
                stage.run()
        except Exception as error:
            failure = _reason(error, counter.last_operator)
    return counter.result(stage, failure)


_NEEDS_VALUES = ("meta tensor", "data-independent", "data-dependent", "is_nonzero", "meta_nonzero", "out of meta")


def _reason(error: Exception, operator: str) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    said = f"{type(error).__name__}: {first_line}"[:300]
    if any(sign in str(error).lower() for sign in _NEEDS_VALUES):
        return f"{operator or 'an operator'} needs the values of a tensor, and tensors on the meta device have none ({said})."
    return f"the stage failed in or after {operator or 'its first operator'}: {said}."
