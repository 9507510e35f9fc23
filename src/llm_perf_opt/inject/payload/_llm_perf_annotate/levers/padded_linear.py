"""Weights of linear layers padded with zeros to sizes that suit tensor cores; results are cut back to their size."""

from __future__ import annotations

from typing import Any

TITLE = "linear layers padded to multiples of 64"
RULES = ("gemm.align",)
NEEDS = ("calls outside training", "unaligned linear layers")
GENERAL = True
CHANGES = "rounding: products of padded sizes use other kernels"
PATCH = """\
head = nn.Linear(size, (vocabulary + 63) // 64 * 64, bias=False)  # when the model is made
logits = head(hidden)[..., :vocabulary]"""

_MULTIPLE = 64


def apply(program: Any) -> None:
    torch = program.torch

    def pad(model: Any) -> None:
        if model.training:
            return
        for layer in model.modules():
            if type(layer) is torch.nn.Linear and program.is_unaligned(layer):
                layer.forward = _padded(torch, layer)
                program.count("linear layers padded")

    program.on_model(pad)


def _padded(torch: Any, layer: Any) -> Any:
    """Of weights that stay what they are: those of the layer may be shared with an embedding."""
    functional = torch.nn.functional
    rows, columns = layer.weight.shape
    more_rows, more_columns = -rows % _MULTIPLE, -columns % _MULTIPLE
    with torch.no_grad():
        weight = functional.pad(layer.weight, (0, more_columns, 0, more_rows))
        bias = None if layer.bias is None else functional.pad(layer.bias, (0, more_rows))

    def forward(given: Any) -> Any:
        if more_columns:
            given = functional.pad(given, (0, more_columns))
        return functional.linear(given, weight, bias)[..., :rows]

    return forward


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("linear layers padded", 0)
    return bool(count), f"{count} padded" if count else "all sizes are multiples of 8, or the model is trained"
