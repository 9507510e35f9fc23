"""Events that differ in nothing but their name and their numbers, read side by side.

The profiler writes all events of one kind alike. A `Shape` is learned from one of them: its text, with gaps for the
name and for every number. It is decoded once, as JSON, which tells what each gap means. Then NumPy reads any number of
events in step: the same letters of all, then the same number of all, and so on. An event that has another letter
anywhere is not of the shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import orjson
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.readers.kineto_columns import Unusual
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s

MISFIT = UNKNOWN - 1  # what is no value of its column
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|\d+(?:\.\d+)?')
_THREAD = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)
_COLON = re.compile(rb"\s*:\s*")
_LONGEST, _MOST_GAPS = 4096, 40  # of an example in letters, and of numbers in it
_MOST_DIGITS = 18  # what always has a place in 64 bits
MOST = 10**_MOST_DIGITS
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1)
_A_NAME = b"-"
_BEHIND = np.zeros(256, dtype=np.bool_)  # letters that may stand behind a number
_BEHIND[list(b",} \t\r\n")] = True
_MOST_SHAPES = 16
_MOST_TRIED, _ALWAYS_TRIED = 3, 100_000  # times for each event that is taken, on average: trying has to be worth it


def _of_bytes(value: int) -> np.uint64:
    """The number of which each byte is that."""
    return np.uint64(value * 0x0101010101010101)


_ONE, _7, _8, _16, _32, _56, _64, _TEN = map(np.uint64, (1, 7, 8, 16, 32, 56, 64, 10))
_PAIRS = np.uint64(0x000000FF000000FF)
_LOW, _HIGH = np.uint64(100 + (1000000 << 32)), np.uint64(1 + (10000 << 32))


class Text:
    """A chunk, and its letters for NumPy, with room behind them for the longest shape."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk = chunk
        self._padded = chunk + b'"' + bytes(_LONGEST)  # a quote ends every name
        self.letters = np.frombuffer(self._padded, dtype=np.uint8)

    def follows(self, at: Int64s, word: bytes) -> Bools:
        """At which places does the word stand?"""
        size = len(word)
        if not size:
            return np.ones(len(at), dtype=np.bool_)
        windows = np.ndarray(len(self._padded) - size + 1, dtype=f"V{size}", buffer=self._padded, strides=(1,))
        same: Bools = windows[at] == np.void(word)
        return same

    def eight(self, at: Int64s) -> NDArray[np.uint64]:
        """Eight letters at each place; the first is the lowest byte."""
        windows = np.ndarray(len(self._padded) - 7, dtype="V8", buffer=self._padded, strides=(1,))
        found: NDArray[np.uint64] = windows[at].view("<u8")
        return found

    def next_quotes(self, at: Int64s) -> Int64s:
        find = self._padded.find
        return np.array([find(b'"', place) for place in at.tolist()], dtype=np.int64)


@define(eq=False)
class Numbers:
    """The numbers in one gap, of many events."""

    digits: Int64s  # without the point
    decimals: Int64s
    fits: Bools  # is there a number, of as many digits as have room?


def _read_numbers(text: Text, at: Int64s) -> tuple[Numbers, Int64s]:
    """The numbers at these places, and where they end."""
    digits, whole = _read_digits(text, at)
    fits, behind = whole > 0, at + whole
    decimals = np.zeros(len(at), dtype=np.int64)
    point = np.flatnonzero(text.letters[behind] == ord("."))
    if len(point):
        fraction, count = _read_digits(text, behind[point] + 1)
        digits[point] = digits[point] * _POWERS[np.minimum(count, _MOST_DIGITS)] + fraction
        decimals[point] = count
        behind[point] += 1 + count
        fits[point] &= count > 0
    return Numbers(digits, decimals, fits & (whole + decimals <= _MOST_DIGITS)), behind


def _read_digits(text: Text, at: Int64s) -> tuple[Int64s, Int64s]:
    """The digits from these places on as a number, and how many they are: all of them, where that is at most 18."""
    value, count = _read_eight(text, at)
    for read in (8, 16):
        more = np.flatnonzero(count == read)
        if not len(more):
            break
        behind, found = _read_eight(text, at[more] + read)
        value[more] = value[more] * _POWERS[found] + behind
        count[more] += found
    return value, count


def _read_eight(text: Text, at: Int64s) -> tuple[Int64s, Int64s]:
    """The digits among eight letters, up to the first that is none: the letters are the bytes of one number."""
    letters = text.eight(at) ^ _of_bytes(0x30)  # a digit is its value now, all else is 10 or more
    others = ((letters + _of_bytes(0x76)) | letters) & _of_bytes(0x80)
    first = others & (~others + _ONE)
    digits = (first >> _7) - _ONE  # all bits of the letters before it
    count = ((digits & _of_bytes(1)) * _of_bytes(1)) >> _56
    letters = (letters & digits) << (_64 - _8 * count)  # zeros before them, so that there are eight
    # Neighbours become one number: two digits, then four, then all.
    letters = (letters * _TEN) + (letters >> _8)
    low, high = letters & _PAIRS, (letters >> _16) & _PAIRS
    value = (low * _LOW + high * _HIGH) >> _32
    return value.astype(np.int64), count.astype(np.int64)


@define(eq=False)
class Events:
    """Events of one shape."""

    rows: Int64s  # which of those that were given
    behind: Int64s  # where each ends
    names: list[bytes]
    numbers: list[Numbers]
    pattern: dict[str, Any]  # an event, with the number of the gap (from 1 on) in each gap

    def of(self, kept: Bools) -> Events:
        if kept.all():
            return self
        numbers = [Numbers(one.digits[kept], one.decimals[kept], one.fits[kept]) for one in self.numbers]
        return Events(self.rows[kept], self.behind[kept], list(compress(self.names, kept)), numbers, self.pattern)

    def whole(self, gap: object, least: int = 0, most: int = MOST) -> Int64s:
        """Whole numbers; MISFIT where it is none, or beyond what it may be."""
        found = self._in_gap(gap)
        fits = found.fits & (found.decimals == 0) & (found.digits >= least) & (found.digits <= most)
        return np.where(fits, found.digits, MISFIT)

    def thread(self) -> Int64s:
        """Its id; old traces write it in quotes."""
        told = self.pattern["tid"]
        if isinstance(told, str):
            if not _THREAD.fullmatch(told):
                raise Unusual
            return np.full(len(self.names), int(told))
        return self.whole(told)

    def times(self) -> tuple[Int64s, Int64s]:
        """Start and end, ns; MISFIT where they have more than three decimals."""
        start, length = (self._nanoseconds(self.pattern.get(key)) for key in ("ts", "dur"))
        return start, np.where((start >= 0) & (length >= 0), start + length, MISFIT)

    def _nanoseconds(self, gap: object) -> Int64s:
        found = self._in_gap(gap)
        scale = np.array([1000, 100, 10, 1])[np.minimum(found.decimals, 3)]
        fits = found.fits & (found.decimals <= 3) & (found.digits <= MOST // scale)
        return np.where(fits, found.digits * scale, MISFIT)

    def _in_gap(self, gap: object) -> Numbers:
        if type(gap) is not int or not 0 < gap <= len(self.numbers):
            raise Unusual
        return self.numbers[gap - 1]


@define(eq=False)
class Shape:
    """How one kind of event is written."""

    pattern: dict[str, Any]
    words: list[bytes]  # between the gaps; one more than there are gaps
    name: int  # which of the gaps is the name

    @classmethod
    def learn(cls, lead: bytes, example: bytes, closing: bytes) -> Shape | None:
        """From an event behind its `lead`; with `closing` at its end it has to be JSON. None where it is not usual."""
        if len(example) > _LONGEST:
            return None
        words, name, last, key = [b""], -1, 0, b""
        text = lead + example
        for token in _TOKEN.finditer(text):
            is_text = token[0].startswith(b'"')
            is_name = name < 0 and key == b'"name"' and is_text
            if is_name:
                name = len(words) - 1
            if is_name or not is_text:
                words[-1] += text[last : token.start() + is_name]  # quotes belong to the words
                words.append(b"")
                last = token.end() - is_name
            key = token[0] if is_text and _COLON.match(text, token.end()) else b""
        words[-1] += text[last:]
        if name < 0 or len(words) > _MOST_GAPS or not words[0].startswith(lead):
            return None
        pattern = _decoded(words, name, closing)
        words[0] = words[0].removeprefix(lead)
        return cls(pattern, words, name) if pattern is not None and all(words[:-1]) else None

    def read(self, text: Text, begins: Int64s) -> Events:
        """Those of the events that are of this shape."""
        rows = np.flatnonzero(text.follows(begins, self.words[0]))
        at = begins[rows] + len(self.words[0])
        fits = np.ones(len(rows), dtype=np.bool_)
        numbers: list[Numbers] = []
        starts = stops = at
        for place, word in enumerate(self.words[1:]):
            if place == self.name:
                starts, stops = at, text.next_quotes(at)
                at = stops
            else:
                found, at = _read_numbers(text, at)
                numbers.append(found)
                fits &= found.fits
            fits &= text.follows(at, word)
            at = np.where(fits, at + len(word), 0)  # the others are read on, somewhere: nobody looks at that
        if not self.words[-1]:  # the last number is over
            fits &= _BEHIND[text.letters[at]]
        chunk = text.chunk
        names = [chunk[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        if b"\\" in chunk:
            fits &= np.array([b"\\" not in name for name in names], dtype=np.bool_)
        return Events(rows, at, names, numbers, self.pattern).of(fits)


def _decoded(words: Sequence[bytes], name: int, closing: bytes) -> dict[str, Any] | None:
    """An event with the number of each gap in it; None where that is no JSON, or its name is elsewhere."""
    text, gap = words[0], 0
    for place, word in enumerate(words[1:]):
        gap += place != name
        text += (_A_NAME if place == name else b"%d" % gap) + word
    try:
        event = orjson.loads((text + closing).rstrip().removesuffix(b","))
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and event.get("name") == _A_NAME.decode() else None


@define(eq=False)
class Taken:
    """What was read of events of several shapes."""

    rows: Int64s  # which of those that were given
    behind: Int64s  # where each was read to
    names: list[bytes]
    columns: Int64s

    def of(self, kept: Bools) -> Taken:
        if kept.all():
            return self
        return Taken(self.rows[kept], self.behind[kept], list(compress(self.names, kept)), self.columns[kept])


def nothing(columns: int) -> Taken:
    none = np.zeros(0, dtype=np.int64)
    return Taken(none, none, [], np.zeros((0, columns), dtype=np.int64))


@define(eq=False)
class Shapes:
    """The shapes that one kind of event has shown so far."""

    lead: bytes  # what all events begin with
    width: int
    columns: Callable[[Events], list[Int64s]]  # what to read; raises `Unusual`, `KeyError` or `TypeError`
    end: re.Pattern[bytes] | None = None  # of what has to be read; None: all
    closing: bytes = b""  # what makes that whole JSON
    _known: list[Shape] = Factory(list)
    _tried: int = 0  # events that a shape was tried on
    _taken: int = 0

    def read(self, text: Text, begins: Int64s, ends: Int64s) -> Taken:
        """Those of the events that are of a known shape, or of one that is learned from them."""
        left = np.arange(len(begins))
        found = [nothing(self.width)]
        for number in range(_MOST_SHAPES):
            if not len(left) or self._tried > _MOST_TRIED * self._taken + _ALWAYS_TRIED:
                break
            if number == len(self._known) and not self._learn(text.chunk[begins[left[0]] : ends[left[0]]]):
                break
            events = self._known[number].read(text, begins[left])
            self._tried += len(left)
            events.rows = left[events.rows]
            found.append(self._taken_of(events, ends))
            self._taken += len(found[-1].rows)
            left = np.setdiff1d(left, events.rows, assume_unique=True)
        return _together(found)

    def _learn(self, example: bytes) -> bool:
        if self.end is not None:
            end = self.end.search(example)
            example = example[: end.end()] if end else b""
        shape = Shape.learn(self.lead, example, self.closing)
        if shape is None or any(shape.words == other.words for other in self._known):
            return False
        self._known.append(shape)
        return True

    def _taken_of(self, events: Events, ends: Int64s) -> Taken:
        """What there is to be read of them: nothing where the shape is none of the kind."""
        try:
            columns = np.stack(self.columns(events), axis=1)
        except (Unusual, KeyError, TypeError):
            return nothing(self.width)
        fits: Bools = np.all(columns > MISFIT, axis=1)
        if self.end is None:
            fits &= events.behind == ends[events.rows]
        return Taken(events.rows, events.behind, events.names, columns).of(fits)


def _together(parts: list[Taken]) -> Taken:
    """In the order of the file."""
    rows, behind, columns = (
        np.concatenate([getattr(part, of) for part in parts]) for of in ("rows", "behind", "columns")
    )
    names = [name for part in parts for name in part.names]
    order = np.argsort(rows, kind="stable")
    if not (order[1:] > order[:-1]).all():
        names = [names[place] for place in order.tolist()]
    return Taken(rows[order], behind[order], names, columns[order])
