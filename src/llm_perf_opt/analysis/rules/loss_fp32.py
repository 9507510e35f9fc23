"""Cross entropy whose logits are kept in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, at_peak, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.tensors import Tensor

_VOCABULARY = 8192
_PASSES = 4  # over logits in 16 bits, fused: read forward twice, read backward, written as gradient


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    logits = {t for kind in launched.kinds if _is_loss(kind) for t in kind.tensors if _is_wide(t)}
    casts = {t.dims[-1] for kind in launched.kinds if _is_cast(kind) for t in kind.tensors if t.dims}
    # By the vocabulary alone: between head and loss, logits are shifted by a token and laid out anew.
    vocabularies = {tensor.dims[-1] for tensor in logits} & casts

    def moves_logits(kind: LaunchKind) -> bool:
        moves = _is_loss(kind) or kind.under("aten::copy_")
        return moves and any(_is_wide(t) and t.dims[-1] in vocabularies for t in kind.tensors)

    rows = unclaimed(of, moves_logits)
    if not vocabularies:
        rows = _by_name(launched) & of.free.rows
    if not rows.any():
        return
    softmax = rows & launched.fits(lambda kind: kind.under("aten::_log_softmax"))
    size = launched.sum(softmax, lambda kind: max((float(t.elements) for t in kind.tensors), default=None))
    best = at_peak(of.gpu, 0.0, "", (size or 0.0) * 2 * _PASSES)
    whole = launched.time(rows)
    if not size or best is None:
        gain = Gain(whole * 0.6, whole * 0.4, whole * 0.8)
    else:
        gain = Gain(*(max(whole - one, 0.0) for one in (best.likely, 2 * best.high, 0.7 * best.low)))
    yield from found_in_kernels(of, "loss.fp32", rows, gain)


def _by_name(launched: Launched) -> Bools:
    """Without shapes: log-softmax over more than 1024 values of fp32, as its kernels' names tell, and copies right before and behind: the casts."""
    softmax = launched.fits(lambda kind: not kind.tensors and named("log_softmax_fp32", kind.kernel))
    copies = launched.fits(lambda kind: kind.family == "copy")
    casts = copies & (np.append(softmax[1:], False) | np.append(False, softmax[:-1]))
    return softmax | casts if launched.ordered and casts.any() else np.zeros_like(softmax)


def _is_loss(kind: LaunchKind) -> bool:
    """A softmax without the logarithm is of attention, or of sampling."""
    return any(part in name for name in kind.operators for part in ("log_softmax", "nll_loss", "cross_entropy"))


def _is_wide(tensor: Tensor) -> bool:
    return tensor.dtype == "fp32" and len(tensor.dims) >= 2 and tensor.dims[-1] >= _VOCABULARY


def _is_cast(kind: LaunchKind) -> bool:
    types = {tensor.dtype for tensor in kind.tensors[:2]}
    return len(types) == 2 and "fp32" in types and bool(types & {"bf16", "fp16"}) and kind.under("aten::copy_")


RULE = Rule(
    id="loss.fp32",
    title="Cross entropy in fp32 over the vocabulary",
    costs="Logits are the largest tensor of a training step; in fp32 they pass through memory a dozen times.",
    seen="Log-softmax over 8192 values or more in fp32, on logits that were cast from 16 bits; copies of them in fp32 count, too. If shapes were not recorded, log-softmax kernels whose names say fp32, next to a cast.",
    words=Words(
        because="{families}, {time} of {now}, move fp32 logits through memory",
        action="fuse the loss: torch.compile around it (the cast stays on the chip), or a fused or chunked cross entropy (Liger, cut-cross-entropy)",
    ),
    find=_find,
    gain="All of its time except four passes over the logits in 16 bits.",
    before="loss = F.cross_entropy(logits.float(), words)",
    after="loss = torch.compile(cross_entropy)(logits, words)",
    unless="The vocabulary is small, or the logits themselves are needed.",
)
