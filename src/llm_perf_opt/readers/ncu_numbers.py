"""Units and numbers as ncu prints them: scaled to taste, in the locale of the machine that printed them."""

from __future__ import annotations

import math
import re

_SECONDS = {
    "second": 1.0,
    "s": 1.0,
    "msecond": 1e-3,
    "ms": 1e-3,
    "usecond": 1e-6,
    "us": 1e-6,
    "nsecond": 1e-9,
    "ns": 1e-9,
}
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXED = re.compile(r"([KMGTP])(byte|hz|inst|cycle|sector|block|request|thread|warp)s?")


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit of a printed unit, named as `ncu_report` names it, and the factor that leads there."""
    numerator, _, denominator = unit.strip().partition("/")
    base, factor = _base_token(numerator, seconds_as="ns")
    if not denominator:  # some versions print the bare `%/` for a percentage per unnamed thing
        return base, factor
    per, divisor = _base_token(denominator, seconds_as="s")
    name = "hz" if (base, per) == ("cycle", "s") else f"{base or '1'}/{per}"
    # 1591 %/byte is printed as 1.591 %/Kbyte: ncu scales such a unit as if it stood above the line.
    return name, factor / divisor if per == "s" else factor * divisor


def _base_token(token: str, seconds_as: str) -> tuple[str, float]:
    if token in _SECONDS:
        # A duration is counted in ns, a rate is per second: ncu_report does the same.
        return seconds_as, _SECONDS[token] * (1e9 if seconds_as == "ns" else 1.0)
    if token in ("Hz", "hz"):
        return "hz", 1.0
    scaled = _PREFIXED.fullmatch(token)
    if scaled is None:
        return token, 1.0
    return scaled.group(2), _PREFIXES[scaled.group(1)]


def rollup_of(metric: str) -> str:
    """How values of several launches become one. Rates and percentages never add up, whatever they count."""
    suffix = metric.rpartition(".")[2]
    return suffix if suffix in ("sum", "max", "min") and "." in metric else "mean"


# ncu prints in the locale of its machine: 26802, 26,802, 26.802 and 26 802 (with a no-break space) are all
# real. Everything but digits and the two marks that can be a decimal mark only groups digits.
_GROUPING = re.compile("(?<=\\d)[\u0020\u00a0\u2009\u202f'\u2019](?=\\d)")
_NUMBER = re.compile(r"[+-]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?")
# The raw page prints its floats this way in every locale, next to integers that do follow the locale.
C_FLOAT = re.compile(r"[+-]?\d+\.\d{6}")


def decimal_mark(text: str) -> str | None:
    """The decimal mark this number proves, or None where it proves nothing."""
    number = bare_number(text)
    if not _NUMBER.fullmatch(number) or C_FLOAT.fullmatch(number):
        return None
    digits = number.lstrip("+-").lower().partition("e")[0]
    dots, commas = digits.count("."), digits.count(",")
    if dots and commas:
        return "." if digits.rfind(".") > digits.rfind(",") else ","
    mark, count = (".", dots) if dots else (",", commas)
    if count == 0 or is_ambiguous(digits):
        return None
    if count > 1:  # a mark that comes twice groups, so the other one is the decimal mark
        return "," if mark == "." else "."
    return mark


def is_ambiguous(digits: str) -> bool:
    """True for `26.802` and `1,399`: three digits behind one mark can be thousands or thousandths."""
    head, mark, tail = digits.replace(",", ".").partition(".")
    return bool(mark) and len(tail) == 3 and tail.isdigit() and 1 <= len(head) <= 3 and head[0] != "0"


def parse_number(text: str, mark: str = ".") -> float | None:
    """The number in a cell, or None where there is none: `n/a`, `no data`, text, infinities and NaN."""
    number = bare_number(text)
    if not _NUMBER.fullmatch(number):
        return None
    if mark == ".":
        number = number.replace(",", "")
    elif not C_FLOAT.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    try:
        value = float(number)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def bare_number(text: str) -> str:
    # `--print-metric-instances values` appends the instances: `128 (64; 64)`.
    return _GROUPING.sub("", text.partition(" (")[0].strip())
