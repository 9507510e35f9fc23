"""Cleans an `.ncu-rep`: the results stay byte for byte, the traces of the host are crossed out.

A report of ncu has no environment, but it names the host with its addresses, the whole command line, the path
of the program, and, where they were asked for, call stacks and source files with their paths. The format is
length-prefixed protobuf messages inside blocks (see `readers.ncu_container`), so every text is replaced by one
of the same length and nothing moves.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

from attrs import Factory, define

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.ncu_container import MAGIC, block_spans, field_spans
from llm_perf_opt.rundir.command_lines import hidden_values
from llm_perf_opt.rundir.scrub.private import Private, environment_of

_Span = tuple[int, int]
_Path = tuple[int, ...]

# Fields of a block header, as paths of field numbers; checked on reports of ncu 2022 to 2025.
_HOST_NAMES: tuple[_Path, ...] = ((3, 3, 5), (3, 4, 5))
_ADDRESSES: tuple[_Path, ...] = ((3, 3, 7, 1), (3, 4, 7, 1))
_COMMAND_LINE = (3, 11)
_LAUNCH_SETTINGS = (3, 9)  # of a report made in ncu's own window: program, arguments, folder, environment
_PROGRAM = (6, 3)
# Of a result: name of a source file and its text.
_SOURCE_FILE = (8, 1)


@define
class Cleaned:
    """What was done to a report."""

    removed: list[str] = Factory(list)  # in words
    notes: list[str] = Factory(list)  # what stays and its owner may want to know


def learn(data: bytes, private: Private) -> None:
    """Host, command line and environment that the report names."""
    for header, _ in block_spans(data):
        for path in _HOST_NAMES:
            for start, end in _at(data, header, path):
                private.learn_host(_text(data[start:end]))
        for start, end in _at(data, header, _COMMAND_LINE):
            private.learn_command(_words(_text(data[start:end])), show=True)  # ncu's own are among them
        for start, end in _at(data, header, _LAUNCH_SETTINGS):
            words = [_text(data[s:e]) for _, s, e in field_spans(data, start, end) or ()]
            private.learn_environment(environment_of(words))


def clean(data: bytes, private: Private, keep: frozenset[str] = frozenset()) -> tuple[bytes, Cleaned]:
    """The cleaned bytes. `keep`: secrets that are in names of ranges, which are content and stay."""
    if not data.startswith(MAGIC):
        raise UnreadableInput("This is not an Nsight Compute report.")
    result = Cleaned()
    work = bytearray(data)
    removed: dict[str, None] = {}

    def cover(spans: Iterator[_Span], what: str, replacement: Callable[[bytes], bytes]) -> None:
        for start, end in spans:
            new = replacement(bytes(work[start:end]))
            assert len(new) == end - start
            if new != work[start:end]:
                removed[what] = None
                work[start:end] = new

    careful = Private(
        {s: name for s, name in private.secrets.items() if s not in keep}, private.homes, private.users, private.hosts
    )
    signs = careful.signs()
    for header, results in block_spans(data):
        for path in _HOST_NAMES:
            cover(_at(data, header, path), "the name of the host", _crossed)
        for path in _ADDRESSES:
            cover(_at(data, header, path), "its network addresses", _crossed)
        cover(_at(data, header, _COMMAND_LINE), "private words of the command line", lambda v: _command(v, private))
        for settings in _at(data, header, _LAUNCH_SETTINGS):
            inside = ((s, e) for _, s, e in field_spans(data, *settings) or ())
            cover(inside, "settings the program was started with", lambda value: _setting(value, private))
        cover(_at(data, header, _PROGRAM), "the folder of the program", private.masked)
        for message in results:
            texts = _texts_with(data, message, signs)
            cover(texts, "paths in call stacks and source files", careful.masked)
            sources = len(list(_at(data, message, _SOURCE_FILE)))
            if sources and not result.notes:
                result.notes.append(f"holds the source code of {sources} files, imported by ncu; it stays")
    result.removed = list(removed)
    return bytes(work), result


def _texts_with(data: bytes, message: _Span, signs: list[bytes]) -> Iterator[_Span]:
    """Texts anywhere below a message that hold one of the signs. Most messages hold none and are not taken apart."""
    start, end = message
    if not any(data.find(sign, start, end) >= 0 for sign in signs):
        return
    fields = field_spans(data, start, end)
    if fields is None:
        yield message
        return
    for _, inner_start, inner_end in fields:
        yield from _texts_with(data, (inner_start, inner_end), signs)


def _at(data: bytes, message: _Span, path: _Path) -> Iterator[_Span]:
    """The places of a field, given by the numbers of the fields around it."""
    number, *rest = path
    for found, start, end in field_spans(data, *message) or ():
        if found == number:
            if rest:
                yield from _at(data, (start, end), tuple(rest))
            else:
                yield start, end


def _command(value: bytes, private: Private) -> bytes:
    """A command line: every value that is not plain is crossed out."""
    text = value.decode("utf-8", "surrogateescape")
    for hidden, _ in sorted(hidden_values(_words(text)), key=lambda found: -len(found[0])):
        text = text.replace(hidden, "x" * len(hidden.encode("utf-8", "surrogateescape")))
    return private.masked(text.encode("utf-8", "surrogateescape"))


def _setting(value: bytes, private: Private) -> bytes:
    """Of an environment variable the name alone."""
    name, equals, content = value.partition(b"=")
    if equals and re.fullmatch(rb"[A-Za-z_][A-Za-z0-9_]*", name):
        return name + equals + b"x" * len(content)
    return private.masked(value)


def _crossed(value: bytes) -> bytes:
    return re.sub(rb"[^.:%\s]", b"x", value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
