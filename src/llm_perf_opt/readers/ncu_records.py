"""Records of ncu's CSV: columns of a header, fields of a row, and the NVTX ranges in a field.

ncu escapes the quotes it puts around ranges, but not those inside a range's name: the usual CSV reader would tear
such rows apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from attrs import Factory, define

from llm_perf_opt.readers.plausible import shortened

_IDENTITY_COLUMNS = frozenset(
    {
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
        *("Block Size", "Grid Size", "Device", "CC"),
    }
)
_RECORD_START = re.compile(r'"?\d+"?,')
_RECORD_START_WITH_PROCESS = re.compile(r'"?\d+"?,"?\d+"?,')

_QUOTES = re.compile('"+')


def split_record(text: str, unescaped: frozenset[int] = frozenset()) -> tuple[list[str], bool]:
    """The fields of one record, and whether the last one is closed.

    ncu escapes the quotes it puts around ranges but not those inside a range's name, so in the columns
    `unescaped` a field ends only where ncu ends it: `"" "`. Their text is returned as it stands.
    """
    fields: list[str] = []
    at, end = 0, len(text)
    while True:
        if text.startswith('"', at):
            close = _closing_quote(text, at + 1, len(fields) in unescaped)
            if close < 0:
                fields.append(text[at + 1 :])
                return fields, False
            cell = text[at + 1 : close]
            fields.append(cell if len(fields) in unescaped else cell.replace('""', '"'))
            at = close + 1
        else:
            comma = text.find(",", at)
            comma = end if comma < 0 else comma
            fields.append(text[at:comma])
            at = comma
        if at >= end:
            return fields, True
        at += 1


def _closing_quote(text: str, start: int, unescaped: bool) -> int:
    for quotes in _QUOTES.finditer(text, start):
        after = quotes.end()
        if (after - quotes.start()) % 2 == 0 or (after < len(text) and text[after] != ","):
            continue
        empty = quotes.start() == start and after - start == 1
        if not unescaped or empty or text[max(start, after - 4) : after - 1] == '"" ':
            return after - 1
    return -1


_ENTRY_BREAK = re.compile(r'""\s+(?:\d+\s+)?""')
_DEFAULT_DOMAIN = "<default domain>"
_MOST_COLONS = 1000  # in a name; each is a place where the name could begin, and each has to be tried
_TAIL_FIELDS = 6  # payload type and value, colour type and value, message type and message


def parse_ranges(cell: str, *, start_end: bool = False) -> tuple[dict[str, list[str]], int]:
    """Names by domain, outermost first, from a range column as it stands in the file; and how many failed.

    An entry is `domain:name:payload type:payload:colour type:colour:message type:message`, all unescaped.
    A start/end entry has its id in front.
    """
    opened, closed = cell.find('""'), cell.rfind('""')
    if opened < 0 or closed < opened + 2:
        return {}, int(bool(cell.strip()))
    ranges: dict[str, list[str]] = {}
    failed = 0
    for entry in _entries(cell[opened + 2 : closed]):
        parsed = _parse_entry(entry.partition(":")[2] if start_end else entry)
        if parsed is None:
            failed += 1
        else:
            ranges.setdefault(shortened(parsed[0]), []).append(shortened(parsed[1]))
    return ranges, failed


def _entries(text: str) -> Iterator[str]:
    """Splits entries, putting those back together whose name holds what looks like the end of an entry."""
    start = at = colons = 0
    while (cut := _ENTRY_BREAK.search(text, at)) is not None:
        colons += text.count(":", at, cut.start())
        at = cut.end()
        if colons > _TAIL_FIELDS:
            yield text[start : cut.start()]
            start, colons = at, 0
    yield text[start:]


def _parse_entry(entry: str) -> tuple[str, str] | None:
    plain = entry.endswith(":none" * _TAIL_FIELDS)
    domain_and_name = (None if plain else _split_by_message(entry)) or _split_by_position(entry)
    if domain_and_name is None:
        return None
    domain, name = domain_and_name
    return ("" if domain == _DEFAULT_DOMAIN else domain), name


def _split_by_message(entry: str) -> tuple[str, str] | None:
    """The message repeats the name, which tells a `:` in the name from a separator.

    The longest name that fits is taken: a domain with a `:` is rarer than a name with one.
    """
    colons = [match.start() for match in re.finditer(":", entry)]
    if len(colons) > _MOST_COLONS:
        return None
    for last in range(_TAIL_FIELDS, len(colons)):
        name = entry[colons[last] + 1 :]
        head_ends = colons[last - _TAIL_FIELDS + 1]
        if entry.endswith(":" + name, 0, head_ends):
            return entry[: head_ends - len(name) - 1], name
    return None


def _split_by_position(entry: str) -> tuple[str, str] | None:
    """Ranges pushed without attributes print `none` for the message, so only the position is left."""
    parts = entry.split(":")
    if len(parts) < 2:
        return None
    name = parts[1:-_TAIL_FIELDS] if len(parts) >= _TAIL_FIELDS + 2 else parts[1:2]
    return parts[0], ":".join(name)


@define
class Columns:
    """Where things stand under one header."""

    names: list[str]
    at: dict[str, int]
    details: bool
    quoted: bool
    ranges: frozenset[int]
    push_pop: int | None
    start_end: int | None
    values: list[tuple[int, str]]  # raw page: the columns of metrics and attributes
    record_start: re.Pattern[str]
    units: dict[int, tuple[str, float]] = Factory(dict)
    units_read: bool = False

    @staticmethod
    def of(names: list[str], quoted: bool) -> Columns:
        at = {name: i for i, name in reversed(list(enumerate(names)))}
        push_pop = next((i for i, name in enumerate(names) if "Push/Pop_Range" in name), None)
        start_end = next((i for i, name in enumerate(names) if "Start/Stop_Range" in name), None)
        return Columns(
            names=names,
            at=at,
            details="Metric Name" in at and "Metric Value" in at,
            quoted=quoted,
            ranges=frozenset(i for i in (push_pop, start_end) if i is not None),
            push_pop=push_pop,
            start_end=start_end,
            values=[
                (i, name) for i, name in enumerate(names) if name and " " not in name and name not in _IDENTITY_COLUMNS
            ],
            # Tables inside sections begin with a number too; what tells them apart is the process.
            record_start=_RECORD_START_WITH_PROCESS if names[:2] == ["ID", "Process ID"] else _RECORD_START,
        )

    def complete(self, fields: list[str], text: str) -> bool:
        """Rows of the details page end behind the value where they have no rule, with a comma or without.

        Everywhere else a comma at the end is that of a row that was cut: ncu quotes empty fields too.
        """
        count = len(fields)
        short = self.at["Metric Value"] + 1 if self.details and "Rule Name" in self.at else None
        if self.quoted and text.endswith(","):
            return short is not None and count == short + 1
        return count in (len(self.names), short)

    def split(self, text: str) -> list[str] | None:
        """The fields of a complete record, or None."""
        fields = self._split_fast(text)
        if fields is not None:
            return fields
        for unescaped in (self.ranges, frozenset[int]()):
            fields, closed = split_record(text, unescaped)
            if closed and self.complete(fields, text):
                return fields
        return None

    def _split_fast(self, text: str) -> list[str] | None:
        if not (self.quoted and text.startswith('"')):
            return None
        body, empty = (text[:-1], True) if text.endswith('",') else (text, False)
        if len(body) < 2 or not body.endswith('"'):
            return None
        fields = body[1:-1].split('","')
        if empty:
            fields.append("")
        if not self.complete(fields, text) or any(cell.count('"') % 2 for cell in fields):
            return None
        return [cell if i in self.ranges else cell.replace('""', '"') for i, cell in enumerate(fields)]

    def cell(self, fields: list[str], name: str) -> str:
        at = self.at.get(name)
        return fields[at] if at is not None and at < len(fields) else ""

    def numbers(self, fields: list[str]) -> Iterable[str]:
        """The cells that follow the locale; the estimated speed-up and the compute capability do not."""
        return (self.cell(fields, "Metric Value"),) if self.details else (fields[i] for i, _ in self.values)
