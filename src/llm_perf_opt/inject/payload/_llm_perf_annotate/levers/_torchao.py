"""What the levers of quantised weights share: torchao rounds the linear layers of every model in eval()."""

from __future__ import annotations

import importlib
from typing import Any


def round_weights(program: Any, config: str, precision: str) -> None:
    torchao = importlib.import_module("torchao.quantization")  # of the program's own packages

    def quantize(module: Any) -> None:
        if not module.training:
            torchao.quantize_(module, getattr(torchao, config)())
            program.count(f"models in {precision}")

    program.on_model(quantize)


def evidence(program: Any, precision: str) -> tuple[bool, str]:
    count = program.counts.get(f"models in {precision}", 0)
    return bool(count), f"{count} with {precision} weights" if count else "no model in eval() was called"
