"""The JSON of PyTorch traces, walked member by member, and its times.

A trace of a gigabyte is mostly events this project has no use for, so the list of events is never in memory as a
whole. Times are decimal microseconds around 4e12, more digits than a float keeps after sums: they are converted to
integer nanoseconds from their digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

LARGEST = 2**63 - 1
EXACT_FLOATS = float(2**43)  # µs: below it a float is close enough to its three decimals to give them back


class DecimalText(str):
    """A JSON number with a fraction or an exponent, as it was written; no JSON string ever is one."""

    __slots__ = ()


_MICROSECONDS = re.compile(r"(\d{1,16})\.(\d{1,3})")
_IN_QUOTES = re.compile(r"\d{1,18}(?:\.\d{1,18})?", re.ASCII)


def nanoseconds(microseconds: object) -> int:
    """Exact nanoseconds from a number of microseconds; more than three decimals are rounded. Some tools write it in quotes.

    Raises `ValueError` for what is no number, is negative, or has no place in 64 bits.
    """
    if type(microseconds) is str and _IN_QUOTES.fullmatch(microseconds):
        microseconds = DecimalText(microseconds)
    if isinstance(microseconds, DecimalText):
        usual = _MICROSECONDS.fullmatch(microseconds)
        if usual is not None:
            whole, fraction = usual.groups()
            return int(whole) * 1000 + int(fraction.ljust(3, "0"))
        value = _rounded(microseconds)
    elif isinstance(microseconds, float) and abs(microseconds) < LARGEST:
        value = round(microseconds * 1000)
    elif isinstance(microseconds, int) and not isinstance(microseconds, bool):
        value = microseconds * 1000
    else:
        raise ValueError(f"not a number: {microseconds!r}")
    if not 0 <= value <= LARGEST:
        raise ValueError("a time must be positive and fit into 64 bits")
    return value


def _rounded(text: DecimalText) -> int:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"not a number: {text}") from None
    if number.is_zero():
        return 0
    if number.adjusted() > 18:  # before `int` builds a number of a million digits
        raise ValueError("a time must fit into 64 bits")
    return int((number * 1000).to_integral_value()) if number.adjusted() > -9 else 0


_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


def _constant(name: str) -> None:
    """NaN and infinities, which Kineto writes and JSON does not know, are no values."""


def _short_integer(text: str) -> int | None:
    # Python refuses to convert thousands of digits, with an error that would cost the whole file.
    return int(text) if len(text) < 40 else None


class Damaged(Exception):
    """The text is not JSON from `at` on."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class JsonText:
    """Walks a JSON text member by member, so that the list of events is never in memory as a whole."""

    def __init__(self, text: str) -> None:
        self.text = text
        # strict=False: names of kernels and files come with raw control characters.
        self._usual = json.JSONDecoder(parse_float=DecimalText, parse_constant=_constant, strict=False)
        self._careful = json.JSONDecoder(
            parse_float=DecimalText, parse_constant=_constant, parse_int=_short_integer, strict=False
        )

    def skip(self, at: int) -> int:
        """The next place that is no white space."""
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int) -> tuple[Any, int]:
        """The value at `at`, and where it ends."""
        try:
            try:
                return self._usual.raw_decode(self.text, at)
            except json.JSONDecodeError:
                raise
            except ValueError:  # an integer of thousands of digits
                return self._careful.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            # The decoder points at where a cut string began; what matters is that it has no end.
            raise Damaged(len(self.text) if error.msg.startswith("Unterminated") else error.pos) from None
        except RecursionError:
            raise Damaged(at) from None

    def object(self, at: int, member: Callable[[str, int], int]) -> int:
        """Gives `member` each key and the place of its value, and is told where the value ends."""
        at = self.skip(at + 1)
        while not self.text.startswith("}", at):
            key, at = self.value(at)
            at = self.skip(at)
            if not isinstance(key, str) or isinstance(key, DecimalText) or not self.text.startswith(":", at):
                raise Damaged(at)
            at = self._next(member(key, self.skip(at + 1)), "}")
        return at + 1

    def list(self, at: int, element: Callable[[Any], None]) -> int:
        """Gives `element` one element after the other; returns where the list ends."""
        at = self.skip(at + 1)
        while not self.text.startswith("]", at):
            value, at = self.value(at)
            element(value)
            at = self._next(at, "]")
        return at + 1

    def _next(self, at: int, close: str) -> int:
        """Behind the comma, or at the closing bracket. A comma before the bracket is forgiven."""
        comma = _COMMA.match(self.text, at)
        if comma is not None:
            return comma.end()
        at = self.skip(at)
        if self.text.startswith(close, at):
            return at
        raise Damaged(at)
