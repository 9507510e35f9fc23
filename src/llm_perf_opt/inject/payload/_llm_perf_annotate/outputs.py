"""What a program computes, as far as two runs of it have to agree: outputs of its models, losses, generated tokens.

Samples of tensors are copied where they are, without waiting for the GPU, and read when the process ends. Runs are
timed at the same time: the first calls are noted, which are warm-up or few, and then so few that a median of all does
not know of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_ALL_UNTIL = 64  # calls of each channel; then one in sixteen, and ever fewer of many thousands
_ONE_IN = 16
_MANY = 4096
_AFTER_PROMPT = 4  # calls that are noted of each text, of so many texts
_MOST_TEXTS = 64
_MOST_VALUES = 256  # of a tensor
_MOST_IN_SIZE = 1 << 16  # values whose size is taken: logits of a long prompt are gigabytes
_MOST_IN_SUM = 1 << 28  # values that are looked through for one that is no number
_MOST_TOKENS = 4096
_MOST_ROWS = 64  # of a batch

OUTPUTS, LOSS, TOKENS = "outputs", "loss", "tokens"


class Outputs:
    """Of one process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._whole = (torch.int64, torch.int32)
        self._found: dict[str, list[dict[str, Any]]] = {OUTPUTS: [], LOSS: [], TOKENS: []}
        self._calls: dict[str, int] = {}
        self._texts, self._noted_until = 0, _ALL_UNTIL

    def called(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a model gave back, and the whole numbers it was given: tokens, which outputs before may have chosen."""
        tensor = self._tensor(result)
        if tensor is not None:
            given = [value for value in (*args, *kwargs.values()) if isinstance(value, self._torch.Tensor)]
            self._add(OUTPUTS, tensor, next((value for value in given if value.dtype in self._whole), None))

    def generated(self, result: Any) -> None:
        tensor = getattr(result, "sequences", result)
        if isinstance(tensor, self._torch.Tensor):
            self._add(TOKENS, tensor)

    def lost(self, tensors: Any) -> None:
        """What `backward()` begins at."""
        tensor = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
        if isinstance(tensor, self._torch.Tensor) and tensor.numel() == 1:
            self._add(LOSS, tensor)

    def _tensor(self, result: Any, level: int = 0) -> Any:
        """The logits, or else the first tensor of numbers."""
        torch = self._torch
        if isinstance(result, torch.Tensor):
            return result if result.is_floating_point() and result.numel() else None
        logits = getattr(result, "logits", None)
        if isinstance(logits, torch.Tensor):
            return logits
        values = result.values() if isinstance(result, Mapping) else result if isinstance(result, (tuple, list)) else ()
        for value in list(values)[:8] if level < 3 else ():
            found = self._tensor(value, level + 1)
            if found is not None:
                return found
        return None

    def _add(self, channel: str, tensor: Any, given: Any = None) -> None:
        torch = self._torch
        number = self._calls[channel] = self._calls.get(channel, 0) + 1
        if given is not None and given.dim() > 1 and given.shape[1] > 1 and self._texts < _MOST_TEXTS:  # a prompt
            self._texts += 1
            self._noted_until = max(self._noted_until, number + _AFTER_PROMPT)
        left_out = number > (self._noted_until if channel == OUTPUTS else _ALL_UNTIL) and _is_left_out(number)
        if left_out or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        most = _MOST_TOKENS if channel == TOKENS else _MOST_VALUES
        facts = {"call": number, "shape": list(tensor.shape), "dtype": str(tensor.dtype).rpartition(".")[2]}
        with torch.no_grad():
            facts["sample"] = _sample(tensor, most)
            if given is not None:
                facts["given"] = _sample(given, most)
            if tensor.is_floating_point():
                part = _sample(tensor, _MOST_IN_SIZE)
                facts["norm"] = torch.linalg.vector_norm(part, dtype=_wide(torch, part)), len(part)
                if tensor.numel() <= _MOST_IN_SUM:
                    facts["lost"] = tensor.detach().sum(dtype=_wide(torch, tensor)).isnan()  # one value is enough
                last = tensor.detach()[:, -1] if tensor.dim() == 3 else tensor.detach()
                if last.dim() == 2 and last.shape[1] > 1:
                    facts["top"] = last[:_MOST_ROWS].float().topk(2)
        self._found[channel].append(facts)

    def read(self) -> dict[str, Any]:
        """As numbers, when the program has ended."""
        return {
            "calls": self._calls,
            **{channel: [_as_numbers(one) for one in found] for channel, found in self._found.items() if found},
        }


def _is_left_out(number: int) -> bool:
    return number % (_ONE_IN << (number // _MANY).bit_length()) != 0


def _wide(torch: Any, tensor: Any) -> Any:
    return torch.promote_types(tensor.dtype, torch.float32)


def _sample(tensor: Any, most: int) -> Any:
    flat = tensor.detach().reshape(-1)
    step = max(len(flat) // most, 1)
    row = tensor.shape[-1] if tensor.dim() else 1
    if step >= row > 1:  # or all of it would be of the same few columns: each is the golden section behind another
        step += (618 * row // 1000 - step) % row
    while math.gcd(step, row) > 1:
        step += 1
    return flat[::step][:most].clone()


def _as_numbers(facts: dict[str, Any]) -> dict[str, Any]:
    found = {name: facts[name] for name in ("call", "shape", "dtype")}
    found["sample"] = _listed(facts["sample"])
    if "given" in facts:
        found["given"] = facts["given"].tolist()
    if "norm" in facts:
        norm, count = facts["norm"]
        lost = "lost" in facts and bool(facts["lost"])
        found["rms"] = None if lost else _finite(float(norm) / math.sqrt(max(count, 1)))
    if "top" in facts:
        values, places = facts["top"]
        found["top"], found["gap"] = places[:, 0].tolist(), _listed(values[:, 0] - values[:, 1])
    return found


def _listed(tensor: Any) -> list[Any]:
    return [_finite(value) for value in (tensor.double() if tensor.is_floating_point() else tensor).tolist()]


def _finite(value: Any) -> Any:
    """JSON has no other numbers."""
    return value if isinstance(value, int) or math.isfinite(value) else None
