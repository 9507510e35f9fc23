"""Numbers that carry their unit: a mistake of a factor of a million is an error here, not a wrong report.

The set of units is closed. Adding, comparing or dividing what does not fit together raises `UnitError`;
a product or quotient gets its unit from the dimensions, so bytes over bytes per second are seconds.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, get_args

from attrs import frozen

Unit = Literal["s", "ns", "Hz", "B", "FLOP", "B/s", "FLOP/s", "FLOP/B", "token", "token/s", "ratio"]
UNITS: tuple[str, ...] = get_args(Unit)
_Dimensions = tuple[int, int, int, int]  # powers of second, byte, FLOP, token

_MEANING: dict[str, tuple[float, _Dimensions]] = {
    "s": (1.0, (1, 0, 0, 0)),
    "ns": (1e-9, (1, 0, 0, 0)),
    "Hz": (1.0, (-1, 0, 0, 0)),
    "B": (1.0, (0, 1, 0, 0)),
    "FLOP": (1.0, (0, 0, 1, 0)),
    "B/s": (1.0, (-1, 1, 0, 0)),
    "FLOP/s": (1.0, (-1, 0, 1, 0)),
    "FLOP/B": (1.0, (0, -1, 1, 0)),
    "token": (1.0, (0, 0, 0, 1)),
    "token/s": (1.0, (-1, 0, 0, 1)),
    "ratio": (1.0, (0, 0, 0, 0)),
}
# The unit a product or quotient is given in: of two for one dimension, the first.
_UNIT_OF: dict[_Dimensions, str] = {}
for _unit, (_, _dimensions) in _MEANING.items():
    _UNIT_OF.setdefault(_dimensions, _unit)


class UnitError(ValueError):
    """Quantities were combined that do not fit together."""


@frozen
class Quantity:
    """A value and its unit."""

    value: float
    unit: str

    def __attrs_post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise UnitError(f"{self.value} is no quantity")
        if self.unit not in _MEANING:
            raise UnitError(f"{self.unit!r} is no unit; there are {', '.join(UNITS)}")

    def to(self, unit: Unit) -> Quantity:
        """The same quantity in another unit of the same dimension."""
        return self if unit == self.unit else Quantity(self.of(unit), unit)

    def of(self, unit: Unit) -> float:
        """The bare number, in the unit the caller counts in."""
        return self.value if unit == self.unit else self.value * _factor(self.unit, unit)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + self._like(other), self.unit)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.value - self._like(other), self.unit)

    def __mul__(self, other: Quantity | float) -> Quantity:
        if not isinstance(other, Quantity):
            return Quantity(self.value * other, self.unit)
        return _combined(self, other, 1)

    def __rmul__(self, other: float) -> Quantity:
        return Quantity(self.value * other, self.unit)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        divisor = other.value if isinstance(other, Quantity) else other
        if divisor == 0:
            raise UnitError(f"{self.value} {self.unit} divided by nothing")
        if not isinstance(other, Quantity):
            return Quantity(self.value / other, self.unit)
        return _combined(self, other, -1)

    def __lt__(self, other: Quantity) -> bool:
        return self.value < self._like(other)

    def __le__(self, other: Quantity) -> bool:
        return self.value <= self._like(other)

    def __gt__(self, other: Quantity) -> bool:
        return self.value > self._like(other)

    def __ge__(self, other: Quantity) -> bool:
        return self.value >= self._like(other)

    def _like(self, other: Quantity) -> float:
        """The other's number, in this one's unit."""
        if not isinstance(other, Quantity):
            raise UnitError(f"a bare number {other!r} has no unit to go with {self.unit}")
        return other.value if other.unit == self.unit else other.to(self.unit).value  # type: ignore[arg-type]


@cache
def _factor(unit: str, wanted: str) -> float:
    """What one of a unit is in another of the same dimension."""
    (scale, dimensions), (target, meant) = _MEANING[unit], _MEANING.get(wanted, (1.0, None))
    if dimensions != meant:
        raise UnitError(f"{unit} cannot be told in {wanted}")
    # Multiplied where that is exact: 1 s is 1,000,000,000 ns, not 999,999,999.9999999.
    factor = scale / target if scale >= target else 1 / (target / scale)
    return round(factor) if factor >= 1 else factor


def _combined(left: Quantity, right: Quantity, power: int) -> Quantity:
    (scale, a), (other, b) = _MEANING[left.unit], _MEANING[right.unit]
    dimensions = (a[0] + power * b[0], a[1] + power * b[1], a[2] + power * b[2], a[3] + power * b[3])
    unit = _UNIT_OF.get(dimensions)
    if unit is None:
        raise UnitError(f"{left.unit} and {right.unit} cannot be {'multiplied' if power == 1 else 'divided'} here")
    value = left.value * right.value if power == 1 else left.value / right.value
    return Quantity(value * scale * other**power, unit)


def nanoseconds(value: float) -> Quantity:
    return Quantity(float(value), "ns")


def total(parts: list[Quantity], unit: Unit) -> Quantity:
    """The sum; of nothing, zero of that unit."""
    return sum(parts, Quantity(0.0, unit))


_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def shown(quantity: Quantity | None) -> str:
    """As people read it: `575 ms`, `1.15 TB/s`, `42.0 %`."""
    if quantity is None:
        return "–"
    if quantity.unit == "ratio":
        return percent(quantity.value)
    if quantity.unit in ("s", "ns"):
        seconds = quantity.of("s")
        step, unit = next((s for s in _TIME_STEPS if abs(seconds) >= s[0] * 0.9995), _TIME_STEPS[-1])
        return f"{three_digits(seconds / step)} {unit}"
    if quantity.unit in ("token", "token/s", "FLOP/B"):
        return f"{three_digits(quantity.value)} {quantity.unit}"
    step, prefix = next((s for s in _STEPS if abs(quantity.value) >= s[0]), (1.0, ""))
    return f"{three_digits(quantity.value / step)} {prefix}{quantity.unit}"


def percent(ratio: float, spec: str = ".1") -> str:
    """`42.0 %`; with `spec` ".0", `42 %`."""
    return f"{100 * ratio:{spec}f} %"


def three_digits(value: float) -> str:
    """Never `1e+03`: that is no number for people."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
