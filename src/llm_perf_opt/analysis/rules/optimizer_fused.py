"""Optimisers in many passes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_FOREACH = re.compile(r"multi_tensor_apply_kernel|_foreach_|foreach_")
_FUSED = re.compile(r"Fused(Adam|Sgd|Adagrad|Optim)", re.IGNORECASE)
_COPIES = re.compile(r"Copy|norm", re.IGNORECASE)
_LERP = re.compile(r"lerp", re.IGNORECASE)
# Arrays of the size of the parameters that pass through memory: lerp of the first moment reads two and writes one; a
# fused Adam reads parameter, gradient and both moments, and writes three of them.
_LERP_PASSES, _FUSED_PASSES = 3, 7


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _is_foreach)
    moment = rows & of.launched.fits(lambda kind: kind.family == "optimizer" and _LERP.search(kind.kernel) is not None)
    time, fused = of.launched.time(rows), of.launched.time(moment) * _FUSED_PASSES / _LERP_PASSES
    known = 0 < fused < time
    gain = Gain.certain(time - fused, 0.2) if known else Gain(time * 0.6, time * 0.4, time * 0.75)
    yield from found_in_kernels(of, "optimizer.fused", rows, gain)


def _is_foreach(kind: LaunchKind) -> bool:
    name = kind.kernel
    found = kind.family == "optimizer" and _FOREACH.search(name) is not None
    return found and not _FUSED.search(name) and not _COPIES.search(name)


RULE = Rule(
    id="optimizer.fused",
    title="The optimiser is not fused",
    costs="Each operation of the update reads and writes all parameters or moments; a fused optimiser passes over them once.",
    seen="Kernels of PyTorch's foreach operators (multi_tensor_apply_kernel) that do not belong to a fused optimiser.",
    words=Words(
        because="{families}, {time} of {now}, go over the parameters once for every operation",
        action="pass fused=True to the optimiser (torch.optim.AdamW, Adam, SGD)",
    ),
    find=_find,
    gain="All except seven passes over the parameters, estimated from the kernel that updates the first moment in three.",
    before="torch.optim.AdamW(model.parameters(), lr=1e-4)",
    after="torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)",
    unless="The optimiser has no fused version.",
)
