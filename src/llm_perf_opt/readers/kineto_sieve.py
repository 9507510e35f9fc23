"""Takes most events of a large PyTorch trace from their text, without decoding them.

They are arrows between the host and the GPU, which tell nothing, operators, functions of Python, and calls of the CUDA
API. Where each event begins and what it is are found by NumPy in a chunk as a whole; a pattern then takes what is
needed. What does not fit it is left to be decoded.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.readers.kineto_code import Found, HostCode, HostRows
from llm_perf_opt.readers.kineto_operators import STEP
from llm_perf_opt.regions.columns import SHORTEST_EVENT, Int64s

PHASE_FIRST = re.compile(rb'\{\s*"ph"(\s*:\s*)"(?=X"(\s*,\s*)"cat")')  # how colons and commas are written
_PHASE = b'"ph"'
_OTHER, _ARROW, _OPERATOR, _FUNCTION, _CALL = range(5)
_PHASES, _KINDS = np.full((2, 256), _OTHER)  # by the letter of the phase; where that is X, the first of the category
_PHASES[list(b"stf")] = _ARROW
_KINDS[list(b"cO")] = _OPERATOR  # or a call
_KINDS[ord("p")] = _FUNCTION
_INPUTS = b'"Input '  # "Input type", "Input Dims", "Input Strides": one behind the other
_LONG = SHORTEST_EVENT / 1000

Bytes = NDArray[np.uint8]


class Sieve:
    """Takes operators, functions and calls from the text of events, and drops arrows; the rest is to be decoded."""

    def __init__(self, layout: re.Match[bytes], code: HostCode) -> None:
        self._lead = layout[0]  # what every event begins with, up to its phase
        self._category = len(b'X"' + layout[2] + b'"cat"' + layout[1] + b'"')  # where it stands, from the phase on
        self._operator = _pattern(rb"cpu_op|Operator", layout)
        self._function = _pattern(rb"python_function", layout)
        # Only with a correlation id is a call known to have launched something.
        behind = rb',\s*"args"\s*:\s*\{[^}]*?"correlation"\s*:\s*(\d{1,18})[,}\s]'
        self._call = _pattern(rb"cuda_runtime|cuda_driver", layout, behind)
        self._code = code
        self.dropped = 0

    def __call__(self, chunk: bytes) -> tuple[bytes, HostRows] | None:
        """What is left of a chunk, and the rows of what is not; None where it cannot be told."""
        text = np.frombuffer(chunk, dtype=np.uint8)
        begins = self._begins(text)
        if begins is None:
            return None
        ends = np.append(begins[1:] - len(self._lead), len(text))
        category = np.minimum(begins + self._category, len(text) - 2)
        kind = np.where(text[begins] == ord("X"), _KINDS[text[category]], _PHASES[text[begins]])
        kind[(kind == _OPERATOR) & (text[category + 1] == ord("u"))] = _CALL
        found, left = Found(), kind == _OTHER
        for one, take in (
            (_OPERATOR, self._take_operators),
            (_FUNCTION, self._take_functions),
            (_CALL, self._take_calls),
        ):
            mine = np.flatnonzero(kind == one)
            left[mine] = take(chunk, begins[mine].tolist(), ends[mine].tolist(), found)
        rows = self._code.rows_of(found)
        kept = [chunk[begin:end] for begin, end in zip(begins[left].tolist(), ends[left].tolist(), strict=True)]
        self.dropped += len(begins) - len(kept)
        return self._lead + self._lead.join(kept) if kept else b"", rows

    def _begins(self, text: Bytes) -> Int64s | None:
        """Where the phase of each event stands; None where there are others, with another order of members."""
        at = _places(text, _PHASE) - self._lead.index(_PHASE)
        if not len(at) or at[0] != 0 or at[-1] + len(self._lead) >= len(text):
            return None
        if not all((text[at + place] == letter).all() for place, letter in enumerate(self._lead)):
            return None
        found: Int64s = at + len(self._lead)
        return found if (at[1:] > found[:-1]).all() else None

    # -- which events cannot be taken. Two million of them: nothing is called below that need not be --------

    def _take_operators(self, chunk: bytes, begins: list[int], ends: list[int], found: Found) -> list[bool]:
        match = self._operator.match
        matches = [match(chunk, begin) for begin in begins]
        found.operators = [one.groups() for one in matches if one]
        if _INPUTS in chunk:
            for one, end in zip(matches, ends, strict=True):
                if one:
                    at = chunk.find(_INPUTS, one.end(), end)
                    found.inputs.append(chunk[at : chunk.rfind(b"]", at, end) + 1] if at >= 0 else b"")
        return [one is None for one in matches]

    def _take_functions(self, chunk: bytes, begins: list[int], ends: list[int], found: Found) -> list[bool]:
        match, kinds = self._function.match, self._code.kinds
        matches = [match(chunk, begin) for begin in begins]
        texts = [one.groups() for one in matches if one]
        found.functions = [one for one in texts if kinds[one[0]] or float(one[3]) >= _LONG]
        return [one is None for one in matches]

    def _take_calls(self, chunk: bytes, begins: list[int], ends: list[int], found: Found) -> list[bool]:
        match = self._call.match
        matches = [match(chunk, begin) for begin in begins]
        texts = [one.groups() for one in matches if one]
        if not self._code.knows_threads_of(texts):
            return [True] * len(begins)
        found.calls = texts
        return [one is None for one in matches]


def _pattern(categories: bytes, layout: re.Match[bytes], behind: bytes = rb"[,}\s]") -> re.Pattern[bytes]:
    """An event of some categories: its name, thread, start and duration, as the file writes them.

    Steps are ranges. The pattern has next to no choices: it is tried a million times. It cannot reach into the next
    event: that begins with a brace behind a comma, and whatever the pattern has behind one is in quotes.
    """
    colon, comma, step = (re.escape(text) for text in (layout[1], layout[2], STEP.encode()))
    return re.compile(
        rb'X"%s"cat"%s"(?:%s)"%s' % (comma, colon, categories, comma)
        + rb'"name"%s"(?!%s)([^"\\]*)"%s' % (colon, step, comma)
        + rb'("pid"%s[^,]+,\s*"tid"%s[^,]+),\s*"ts"%s([0-9.]+),\s*"dur"%s([0-9.]+)' % ((colon,) * 4)
        + behind
    )


def _places(text: Bytes, word: bytes) -> Int64s:
    """Where a short word stands in a long text, told by the third of its letters: the rarest of `"ph"` in JSON."""
    at = np.flatnonzero(text == word[2]) - 2
    at = at[(at >= 0) & (at <= len(text) - len(word))]
    for place, letter in enumerate(word):
        at = at[text[at + place] == letter]
    return at
