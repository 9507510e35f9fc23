"""Forward work that backward does again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind
from llm_perf_opt.metrics.quantity import Quantity, shown

_BACKWARD = "autograd::engine::evaluate_function"
# Operators of a forward pass that no formula of a gradient is made of.
_FORWARD = frozenset(
    f"aten::{name}"
    for name in [
        "linear",
        "gelu",
        "silu",
        "relu",
        "layer_norm",
        "native_layer_norm",
        "rms_norm",
        "softmax",
        "embedding",
        "dropout",
        "scaled_dot_product_attention",
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "conv2d",
        "conv1d",
    ]
)
_FEWEST = 2  # different operators: one alone may be of a gradient that somebody wrote
_FULL = 0.8  # of the GPU's memory, from which on there is no room for what would be kept
# PyTorch's own gradients end in a number. None calls an operator of a forward pass: what it saved is computed again.
# Nor does that of a reentrant checkpoint do anything else.
_OWN = re.compile(r"[A-Za-z]\w*Backward\d+$|CheckpointFunctionBackward$")


def _find(of: Evaluated) -> Iterator[Found]:
    launched, peak = of.launched, of.region.timing.memory_peak_bytes if of.region.timing else None
    memory = of.gpu.memory if of.gpu else None
    if peak and memory and peak >= _FULL * memory.of("B"):
        return
    room = f", though it needs no more than {shown(Quantity(peak, 'B'))} of {shown(memory)}" if peak and memory else ""
    first = {name for kind in launched.kinds if not _is_backward(kind) for name in kind.operators}
    again = {name for kind in launched.kinds for name in _repeated(kind)} & first
    own = {
        name for kind in launched.kinds if _in_own(kind) for name in _repeated(kind)
    }  # also where forward is a stage of its own
    if len(again) >= _FEWEST or own & first or len(own) >= _FEWEST:
        rows = unclaimed(of, lambda kind: bool(_repeated(kind)))
        yield from found_in_kernels(of, "recompute", rows, Gain.certain(launched.time(rows), 0.15), room=room)


def _is_backward(kind: LaunchKind) -> bool:
    return bool(kind.operators) and kind.operators[0].startswith(_BACKWARD)


def _in_own(kind: LaunchKind) -> bool:
    return any(_OWN.fullmatch(name) for name in kind.operators)


def _repeated(kind: LaunchKind) -> set[str]:
    return set(kind.operators) & _FORWARD if _is_backward(kind) else set()


RULE = Rule(
    id="recompute",
    title="Activations are computed twice",
    costs="Checkpointing saves memory by repeating the forward pass of a block during the backward pass: a third more work.",
    seen="Operators of the forward pass (linear, activations, normalisation, attention) that run inside autograd's backward and also before it: two different operators, or a single one if it runs inside one of PyTorch's own gradient functions. In a stage that does not contain the forward pass: two inside PyTorch's own gradient functions.",
    words=Words(
        because="{families}, {time} of {now}, repeat the forward pass in backward{room}",
        action="checkpoint less where memory allows (fewer blocks, or selectively: torch.utils.checkpoint with create_selective_checkpoint_contexts)",
    ),
    find=_find,
    operators=True,
    gain="The time of the repeated kernels.",
    before="y = checkpoint(block, x, use_reentrant=False)",
    after="y = block(x)",
    unless="The memory is needed. A recording does not show how much is free; if the program was measured, this fix is left out for a step that uses 80 % of the GPU's memory or more.",
)
