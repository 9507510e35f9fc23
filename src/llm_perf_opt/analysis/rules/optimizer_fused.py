"""Optimisers in many passes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_FOREACH = re.compile(r"multi_tensor_apply_kernel|_foreach_|foreach_")
# Functors that do one operation for all tensors. One called AdamFunctor (Apex, DeepSpeed, Transformer Engine) or
# FusedAdamMathFunctor does the whole update; others copy, scale or take norms.
_ONE_OPERATION = re.compile(r"(Unary|Binary|Ternary|Pointwise)Op\w*Functor|Lerp\w*Functor")
_NO_UPDATE = re.compile(r"Fused|Copy|norm|non_finite", re.IGNORECASE)
_LERP = re.compile(r"lerp", re.IGNORECASE)
# Arrays of the size of the parameters that pass through memory: lerp of the first moment reads two and writes one; a
# fused Adam reads parameter, gradient and both moments, and writes three of them.
_LERP_PASSES, _FUSED_PASSES = 3, 7
# What Adam calls for each parameter where it goes through them in a loop.
_EACH = ("aten::lerp_", "aten::addcmul_", "aten::addcdiv_")
_ACTION = "pass fused=True to the optimiser (torch.optim.AdamW, Adam, SGD)"
_FEWEST = 8  # parameters that are updated one by one in a step
_APART = 8  # launches at most from one such call to the next of the same parameter, and to the next parameter


def _find(of: Evaluated) -> Iterator[Found]:
    yield from _one_by_one(of)
    rows = unclaimed(of, _is_foreach)
    moment = rows & of.launched.fits(lambda kind: kind.family == "optimizer" and _LERP.search(kind.kernel) is not None)
    time, fused = of.launched.time(rows), of.launched.time(moment) * _FUSED_PASSES / _LERP_PASSES
    known = 0 < fused < time
    gain = Gain.certain(time - fused, 0.2) if known else Gain(time * 0.6, time * 0.4, time * 0.75)
    yield from found_in_kernels(of, "optimizer.fused", rows, gain)


def _one_by_one(of: Evaluated) -> Iterator[Found]:
    """A loop over the parameters: the GPU may wait for its launches, too."""
    launched = of.launched
    updates = launched.fits(lambda kind: kind.operators[-1:] == _EACH[-1:]) & of.free.rows
    moments = launched.fits(lambda kind: kind.operators[-1:] == _EACH[:1])
    parameters = updates.sum() * launched.scale / launched.instances
    if not launched.ordered or parameters < _FEWEST or not moments.any():  # RMSprop and Adagrad have no first moment
        return
    marks = np.flatnonzero(launched.fits(lambda kind: kind.operators[-1:] in [(name,) for name in _EACH]))
    near = np.diff(marks) <= _APART
    ends = np.zeros(len(launched) + 1, dtype=np.int64)
    np.add.at(ends, marks[:-1][near], 1)
    np.add.at(ends, marks[1:][near] + 1, -1)
    rows = (np.cumsum(ends[:-1]) > 0) & launched.fits(lambda kind: kind.family == "elementwise") & of.free.rows
    gaps = launched.host_gaps
    waits = np.maximum(gaps.ns - np.append(0, launched.time_ns[:-1]), 0) if gaps is not None else np.zeros(len(rows))
    waiting = of.free.take_idle(("launch.graph",), float(waits[rows].sum()) * launched.scale)
    idle = sum(part.time_ns for part in waiting)
    lerp = launched.time(rows & moments)
    time = launched.time(rows)
    fused = min(lerp * _FUSED_PASSES / _LERP_PASSES, time)
    gain = Gain(time - fused + idle, 0.5 * idle, time + idle)
    texts, count = "optimizer.fused.loop", f"{parameters:.0f}"
    yield from found_in_kernels(of, "optimizer.fused", rows, gain, waiting=waiting, texts=texts, parameters=count)


def _is_foreach(kind: LaunchKind) -> bool:
    name = kind.kernel
    found = kind.family == "optimizer" and _FOREACH.search(name) is not None and not _NO_UPDATE.search(name)
    return found and ("Functor" not in name or _ONE_OPERATION.search(name) is not None)


RULE = Rule(
    id="optimizer.fused",
    title="The optimiser is not fused",
    costs="Each operation of the update reads and writes all parameters or moments; a fused optimiser passes over them once.",
    seen="Kernels of PyTorch's foreach operators (multi_tensor_apply_kernel with one operation for all tensors) that do not belong to a fused optimiser, of PyTorch or another library; or at least eight parameters per step, each updated by operators of its own (lerp_, addcmul_, addcdiv_).",
    words=Words(because="{families}, {time} of {now}, go over the parameters once for every operation", action=_ACTION),
    variants={
        "loop": Words(
            because="{parameters} parameters are updated one by one, {time} of {now} in their kernels and in waiting between them",
            action=_ACTION,
        )
    },
    find=_find,
    gain="All except seven passes over the parameters, estimated from the kernel that updates the first moment in three; for a loop over the parameters, also the time spent waiting for its launches.",
    before="torch.optim.AdamW(model.parameters(), lr=1e-4)",
    after="torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)",
    unless="The optimiser has no fused version.",
)
