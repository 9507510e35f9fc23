"""What the user says of the GPU: a model, a bandwidth, a peak. Amounts need a unit, so that none is misread."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.hardware.data import PEAKS, hardware_data
from llm_perf_opt.metrics.quantity import Quantity

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kMGTP]?)(FLOP/s|FLOPS|OP/s|OPS|B/s)\s*")
_BANDWIDTHS = ("bandwidth", "l2_bandwidth")


@define
class Overrides:
    """`hardware.*` of the configuration, checked."""

    model: str = ""
    bandwidth: Quantity | None = None
    l2_bandwidth: Quantity | None = None
    peaks: dict[str, Quantity] = Factory(dict)
    from_ncu: bool = False  # ncu's own roofline metrics before the data, where a recording has them

    def names(self) -> list[str]:
        """What it has figures of."""
        whole = [name for name in ("model", *_BANDWIDTHS) if getattr(self, name)]
        return [*whole, *self.peaks]


def parse_overrides(settings: Mapping[str, Any]) -> Overrides:
    """`{"model": "H200 SXM", "bandwidth": "4.8 TB/s", "tensor_bf16": "989 TFLOP/s"}`; peaks may stand below `peaks`."""
    flat = {k: v for k, v in settings.items() if k != "peaks"}
    nested = settings.get("peaks") or {}
    found = Overrides(from_ncu=nested == "ncu")
    if not isinstance(nested, Mapping) and not found.from_ncu:
        raise UserError(f"peaks={nested} is not known.", "Write peaks=ncu, or a peak, as in tensor_bf16=989TFLOP/s")
    flat |= {} if found.from_ncu else dict(nested)
    for key, value in flat.items():
        if key == "model":
            found.model = _model(str(value))
        elif key in _BANDWIDTHS:
            setattr(found, key, _amount(key, value, "B/s"))
        elif key in PEAKS:
            found.peaks[key] = _amount(key, value, "FLOP/s")
        else:
            known = ["model", *_BANDWIDTHS, *PEAKS]
            close = difflib.get_close_matches(key, known, 1)
            raise UserError(
                f"There is no hardware setting {key!r}" + (f" (did you mean {close[0]}?)." if close else "."),
                f"Choose from {', '.join(known)}.",
            )
    return found


def _model(name: str) -> str:
    names = [m.name for m in hardware_data().models]
    chosen = {n.casefold(): n for n in names}.get(name.strip().casefold())
    if chosen is None:
        close = difflib.get_close_matches(name, names, 3, 0.3)
        raise UserError(
            f"The hardware data has no GPU model {name!r}.",
            f"Nearest: {', '.join(close) or ', '.join(names[:5])}. Or give its figures: bandwidth=…TB/s, tensor_bf16=…TFLOP/s",
        )
    return chosen


def _amount(key: str, value: Any, unit: str) -> Quantity:
    example = "4.8TB/s" if unit == "B/s" else "989TFLOP/s"
    match = _AMOUNT.fullmatch(str(value))
    if match is None:
        raise UserError(f"{key}={value} has no unit or is not a number.", f"Write it as {key}={example}")
    number, prefix, given = match.groups()
    if (given == "B/s") != (unit == "B/s"):
        raise UserError(f"{key}={value} is given in {given}, but {unit} is needed.", f"Write it as {key}={example}")
    amount = float(number.replace("_", "")) * _PREFIXES[prefix]
    if not 0 < amount < math.inf:
        raise UserError(f"{key}={value} is not above 0, or too large.", f"Write it as {key}={example}")
    return Quantity(amount, unit)
