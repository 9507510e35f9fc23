"""Reads the CSV that Nsight Compute prints: `--csv --page raw` and `--csv --page details`.

It exists because this text is often all that is left of a capture: it was pasted from a terminal or cut
out of a job's log, and the `.ncu-rep` is gone. So the reader trusts nothing about the file but its header:
log lines may stand anywhere, units are scaled to taste, numbers follow the locale of the machine that
printed them, and range names are not escaped.

`ncu_records` splits rows and ranges, `ncu_numbers` reads numbers and units, `ncu_labels` knows what the details page
calls things. The reader knows the text and nothing of analysis: one `Action` a result, counters in base units, and
for everything it could not read a `Diagnosis` instead of a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from attrs import Factory, define, field

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.device_facts import device_facts
from llm_perf_opt.readers.ncu_labels import DYNAMIC_SHARED, STATIC_SHARED, metric_name, section_identifier
from llm_perf_opt.readers.ncu_native import FILL, LARGEST_COUNTER, LARGEST_FACT, NOT_COUNTERS
from llm_perf_opt.readers.ncu_numbers import (
    C_FLOAT,
    bare_number,
    base_unit,
    decimal_mark,
    is_ambiguous,
    parse_number,
    rollup_of,
)
from llm_perf_opt.readers.ncu_records import Columns, parse_ranges, split_record
from llm_perf_opt.readers.plausible import LARGEST_DEVICE, shortened
from llm_perf_opt.readers.sandbox import Notes
from llm_perf_opt.readers.text_encoding import encoding_of
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Rule

_EXPECTED = "Expected a recording of nsys (.sqlite), ncu (.ncu-rep) or PyTorch (.json), or what `ncu --csv --page raw` or `--page details` prints."

# A raw page is about 15 KB a line; far beyond that it is no CSV of ncu and must not fill the memory.
_LONGEST_LINE = 16 * 1024 * 1024
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
# Range names and rule texts may hold newlines. A record still open after this many lines is damaged.
_MOST_LINES_A_RECORD = 200

_DISPLAY_NAME = "device__attribute_display_name"

_DIMENSIONS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NOTHING_PROFILED = re.compile(r"==WARNING== No \w+ were profiled")


@define
class _Text:
    """The state of one file: which header rules, which record is open, what was found."""

    source: str
    columns: Columns | None = None
    actions: list[Action] = Factory(list)
    by_id: dict[tuple[str, str], Action] = Factory(dict)
    metric_info: dict[str, MetricInfo] = Factory(dict)
    section_metrics: dict[str, list[str]] = Factory(dict)
    gpus: dict[int, str] = Factory(dict)
    gpu_facts: dict[int, dict[str, Any]] = Factory(dict)
    mark: str | None = None  # the decimal mark, once a number has proven it
    waiting: list[tuple[Columns, list[str]]] = Factory(list)  # rows that need the mark to be read
    open_lines: list[str] = Factory(list)
    damaged: int = 0
    failed_ranges: int = 0
    any_line: bool = False
    nothing_profiled: bool = False
    first_error: str = ""
    summary: bool = False
    last_line: str = ""
    range_cache: dict[tuple[int, str], dict[str, list[str]]] = Factory(dict)
    shared: dict[int, dict[str, int]] = field(factory=dict)  # id(action) -> static and dynamic bytes

    # -- lines ---------------------------------------------------------------------------------------------

    def feed(self, line: str) -> None:
        self.last_line = line
        text = line.rstrip("\r\n")
        if not text and not self.open_lines:  # a file of nothing else must not take long
            return
        if not self.any_line:
            text = text.removeprefix("\ufeff")
        self.any_line = self.any_line or bool(text.strip())
        if "Kernel Name" in text and self._header(text):
            return
        columns = self.columns
        if columns is None:
            self._note_log(text)
        elif self.open_lines and not columns.record_start.match(text):
            self._continue_record(columns, line)
        else:
            self._drop_open_record()
            self._start_record(columns, text, line)

    def _header(self, text: str) -> bool:
        names, closed = split_record(text.strip())
        if "Kernel Name" not in names:
            return False
        if "ID" not in names:
            self.summary = self.summary or "Invocations" in names
            return False
        if not closed:
            raise self._truncated()
        self._drop_open_record()
        self._read_waiting()
        self.columns = Columns.of(names, quoted=text.startswith('"'))
        self.by_id = {}  # another header is another output: its ids begin anew
        return True

    def _note_log(self, text: str) -> None:
        if _NOTHING_PROFILED.match(text):
            self.nothing_profiled = True
        elif text.startswith("==ERROR==") and not self.first_error:
            self.first_error = text

    def _start_record(self, columns: Columns, text: str, line: str) -> None:
        if columns.quoted and not text.startswith('"'):
            self._note_log(text)
            return
        fields = columns.split(text)
        if fields is not None:
            self._record(columns, fields)
        elif columns.record_start.match(text):
            self.open_lines = [line]

    def _continue_record(self, columns: Columns, line: str) -> None:
        self.open_lines.append(line)  # with its line break: that is part of a range's name
        # Only a line that ends like a record can end this one; the test spares most attempts.
        if line.rstrip("\r\n").endswith(('"', '",')) or not columns.quoted:
            fields = columns.split("".join(self.open_lines).rstrip("\r\n"))
            if fields is not None:
                self.open_lines = []
                self._record(columns, fields)
                return
        if len(self.open_lines) > _MOST_LINES_A_RECORD:
            self._drop_open_record()

    def _drop_open_record(self) -> None:
        self.damaged += bool(self.open_lines)
        self.open_lines = []

    def _truncated(self) -> UnreadableInput:
        return UnreadableInput(
            f"{self.source} is CSV of Nsight Compute that is truncated: it ends in the middle of a row.",
            "Copy or print it again, whole.",
        )

    # -- records -------------------------------------------------------------------------------------------

    def _record(self, columns: Columns, fields: list[str]) -> None:
        if not columns.cell(fields, "ID").strip().isdigit():
            if not columns.details and not columns.units_read and columns.cell(fields, "ID") == "":
                columns.units = {i: base_unit(fields[i]) for i, _ in columns.values}
                columns.units_read = True
            return
        if self.mark is None:
            cells = list(columns.numbers(fields))
            self.mark = next((mark for cell in cells if (mark := decimal_mark(cell))), None)
            if self.mark is not None:
                self._read_waiting()
            elif self.waiting or any(is_ambiguous(bare_number(cell)) for cell in cells):
                self.waiting.append((columns, fields))
                return
        self._read(columns, fields)

    def _read_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for columns, fields in waiting:
            self._read(columns, fields)

    def _read(self, columns: Columns, fields: list[str]) -> None:
        if columns.details:
            self._read_details(columns, fields)
        else:
            self._read_raw(columns, fields)

    def _number(self, text: str) -> float | None:
        return parse_number(text, self.mark or ".")

    def _new_action(self, columns: Columns, fields: list[str]) -> Action:
        name = shortened(columns.cell(fields, "Kernel Name"))
        grid = _dimensions(columns.cell(fields, "Grid Size"))
        block = _dimensions(columns.cell(fields, "Block Size"))
        # Ranges and graphs are printed with a fixed word for the name, and nothing else has no launch.
        kind = name if name in ("range", "graph") and grid is None and block is None else "kernel"
        action = Action(kind=kind, name=name, grid=grid, block=block)
        if kind == "kernel":
            _fill_certain_names(action)
        action.device = _integer(columns.cell(fields, "Device"))
        if action.device is not None and action.device > LARGEST_DEVICE:
            action.device = None
        action.process = _integer(columns.cell(fields, "Process ID"))
        action.push_pop = self._ranges(columns.push_pop, fields, start_end=False)
        action.start_end = self._ranges(columns.start_end, fields, start_end=True)
        self.actions.append(action)
        return action

    def _ranges(self, at: int | None, fields: list[str], *, start_end: bool) -> dict[str, list[str]]:
        if at is None or at >= len(fields) or not fields[at]:
            return {}
        key = (at, fields[at])
        if key not in self.range_cache:
            ranges, failed = parse_ranges(fields[at], start_end=start_end)
            self.range_cache[key] = ranges
            self.failed_ranges += failed
        return {domain: list(names) for domain, names in self.range_cache[key].items()}

    def _add_metric(self, action: Action, name: str, value: float, unit: str) -> None:
        if not abs(value) < LARGEST_COUNTER:
            return
        action.metrics.setdefault(name, value)
        if name not in self.metric_info:
            self.metric_info[name] = MetricInfo(unit=unit, rollup=rollup_of(name))

    # -- raw page ------------------------------------------------------------------------------------------

    def _read_raw(self, columns: Columns, fields: list[str]) -> None:
        action = self._new_action(columns, fields)
        for i, name in columns.values:
            if NOT_COUNTERS.match(name) or not fields[i]:
                continue
            value = self._number(fields[i])
            if value is not None:
                unit, factor = columns.units.get(i, ("", 1.0))
                self._add_metric(action, name, value * factor, unit)
        self._read_launch(action, columns, fields)

    def _read_launch(self, action: Action, columns: Columns, fields: list[str]) -> None:
        def count(name: str) -> int | None:
            value = self._number(columns.cell(fields, name))
            return int(value) if value is not None and abs(value) < LARGEST_FACT else None

        if action.device is None:
            action.device = count("device__attribute_device_index")
            if action.device is not None and not 0 <= action.device <= LARGEST_DEVICE:
                action.device = None
        product = columns.cell(fields, _DISPLAY_NAME)
        if product and action.device is not None:
            self.gpus.setdefault(action.device, product)
            if action.device not in self.gpu_facts:
                self.gpu_facts[action.device] = device_facts(product, count)
        action.passes = count("profiler__replayer_passes")
        if action.kind != "kernel":
            return
        # Old versions have no columns for the launch, only metrics.
        action.grid = action.grid or _positive([count(f"launch__grid_dim_{axis}") for axis in "xyz"])
        action.block = action.block or _positive([count(f"launch__block_dim_{axis}") for axis in "xyz"])
        for name in FILL:
            self._add_fill(action, name, columns.cell(fields, name))
        for name in (STATIC_SHARED, DYNAMIC_SHARED):
            if name in columns.at:
                factor = columns.units.get(columns.at[name], ("", 1.0))[1]
                self._add_shared(action, name, columns.cell(fields, name), factor)

    def _add_fill(self, action: Action, name: str, text: str) -> None:
        value = self._number(text)
        if value is not None and abs(value) < LARGEST_FACT:
            action.fill[FILL[name]] = value

    def _add_shared(self, action: Action, name: str, text: str, factor: float) -> None:
        """Takes a size only where it was printed to the byte: it is part of the kernel's signature."""
        value = self._number(text)
        if value is None or not 0 <= value * factor < 2**31:
            return
        # Floats have 2 or 6 decimals on every page: 2 are too few for anything but bytes.
        if value and factor > 1 and not (factor <= 1e6 and C_FLOAT.fullmatch(bare_number(text))):
            return
        parts = self.shared.setdefault(id(action), {})
        parts[name] = round(value * factor)
        if len(parts) == 2:
            action.shared_memory = sum(parts.values())

    # -- details page --------------------------------------------------------------------------------------

    def _read_details(self, columns: Columns, fields: list[str]) -> None:
        key = (columns.cell(fields, "Process ID"), columns.cell(fields, "ID"))
        action = self.by_id.get(key)
        if action is None:
            action = self.by_id[key] = self._new_action(columns, fields)
            capability = columns.cell(fields, "CC").strip()
            if action.device is not None and _CAPABILITY.fullmatch(capability):
                self.gpu_facts.setdefault(action.device, {"name": "", "compute_capability": capability})
        section = section_identifier(columns.cell(fields, "Section Name"))
        if section and section not in action.sections:
            action.sections.append(section)
        if columns.cell(fields, "Metric Name"):
            self._read_labelled(action, columns, fields)
        if columns.cell(fields, "Rule Name"):
            action.rules.append(_rule(columns, fields))

    def _read_labelled(self, action: Action, columns: Columns, fields: list[str]) -> None:
        name = metric_name(
            columns.cell(fields, "Section Name"),
            columns.cell(fields, "Body Item Label"),
            columns.cell(fields, "Metric Name"),
        )
        text = columns.cell(fields, "Metric Value")
        unit, factor = base_unit(columns.cell(fields, "Metric Unit"))
        if name in (STATIC_SHARED, DYNAMIC_SHARED):
            self._add_shared(action, name, text, factor)
        if name in FILL:
            self._add_fill(action, name, text)
        if name is None or NOT_COUNTERS.match(name):
            return
        value = self._number(text)
        if value is not None:
            self._add_metric(action, name, value * factor, unit)
            shown = self.section_metrics.setdefault(section_identifier(columns.cell(fields, "Section Name")), [])
            if name not in shown:
                shown.append(name)

    # -- the end -------------------------------------------------------------------------------------------

    def finish(self) -> CounterSet:
        if self.columns is None:
            return self._without_header()
        # ncu ends every line, so a last line that has no end and is no record was cut.
        if self.open_lines or self._last_line_was_cut(self.columns):
            raise self._truncated()
        self._read_waiting()
        return self._counters(self._diagnostics())

    def _last_line_was_cut(self, columns: Columns) -> bool:
        text = self.last_line
        if not columns.quoted or text.endswith(("\n", "\r")) or not text.startswith('"'):
            return False
        return split_record(text)[0] != columns.names and columns.split(text) is None

    def _without_header(self) -> CounterSet:
        if self.nothing_profiled:
            return self._counters([self._no_results("ncu says: No kernels were profiled.")])
        raise UnreadableInput(f"{self.source} {self._what_it_is()}.", self._what_to_do())

    def _what_it_is(self) -> str:
        if not self.any_line:
            return "is empty, which is what ncu prints when its filters leave no result"
        if self.first_error:
            return f"is a log of ncu without results; its first error is {self.first_error[:300]!r}"
        if self.summary:
            return "is a summary of ncu (--print-summary), which has no single results"
        return "is text without a header of Nsight Compute's CSV"

    def _what_to_do(self) -> str:
        if self.first_error:
            return "Remove the cause (llm-perf doctor checks GPU, tools and permissions), run ncu again with -o NAME, and give NAME.ncu-rep."
        return f"{_EXPECTED} Run ncu again with -o NAME, and give NAME.ncu-rep."

    def _no_results(self, cause: str) -> Diagnosis:
        return diagnose("NO_RESULTS.of_csv", source=self.source, cause=cause)

    def _diagnostics(self) -> list[Diagnosis]:
        found: list[Diagnosis] = []
        if not self.actions:
            found.append(self._no_results("It has the header of ncu's CSV and no row below it."))
        if self.damaged:
            found.append(diagnose("DAMAGED_ROWS", rows=self.damaged, source=self.source))
        if self.failed_ranges:
            found.append(diagnose("UNREADABLE_RANGES", names=self.failed_ranges, source=self.source))
        return found

    def _counters(self, diagnostics: list[Diagnosis]) -> CounterSet:
        environment: dict[str, Any] = {"tool": "Nsight Compute (CSV)"}
        if self.gpus:
            environment["gpus"] = self.gpus
        return CounterSet(
            source=self.source,
            kind="ncu-csv",
            actions=self.actions,
            metric_info=self.metric_info,
            section_metrics={name: shown for name, shown in self.section_metrics.items() if name},
            environment=environment,
            diagnostics=diagnostics,
            simplified_names=True,
            gpu_facts=self.gpu_facts,
        )


def _integer(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _dimensions(text: str) -> tuple[int, int, int] | None:
    found = _DIMENSIONS.fullmatch(text.strip())
    return _positive([_integer(group) for group in found.groups()]) if found else None


def _positive(sizes: list[int | None]) -> tuple[int, int, int] | None:
    x, y, z = sizes
    # A range has no launch; some versions print zeros for it.
    return (x, y, z) if x and y and z else None


def _fill_certain_names(action: Action) -> None:
    """ncu prints one form of the name and does not say which: only two of them are recognisable."""
    if action.name.startswith("_Z"):
        action.mangled = action.name
    elif _IDENTIFIER.fullmatch(action.name):
        action.short = action.name


def _rule(columns: Columns, fields: list[str]) -> Rule:
    # The speed-up is printed with a point in every locale.
    speedup = parse_number(columns.cell(fields, "Estimated Speedup"))
    return Rule(
        rule=columns.cell(fields, "Rule Name"),
        title=columns.cell(fields, "Rule Name"),  # this page does not print titles
        message=columns.cell(fields, "Rule Description"),
        estimated_speedup_percent=speedup,
    )


def _lines(stream: TextIO, source: str) -> Iterator[str]:
    while True:
        try:
            line = stream.readline(_LONGEST_LINE)
        except UnicodeError:
            raise UnreadableInput(f"{source} is not text in the expected encoding.", _EXPECTED) from None
        if not line:
            return
        if len(line) >= _LONGEST_LINE:
            raise UnreadableInput(f"{source} has lines of {_LONGEST_LINE} characters and more.", _EXPECTED)
        yield line


def read_ncu_csv(text_stream: TextIO, source: str) -> CounterSet:
    """Reads ncu's CSV, wherever in `text_stream` it stands. Raises `UnreadableInput` where there is none."""
    text = _Text(source)
    for line in _lines(text_stream, source):
        text.feed(line)
    return text.finish()


def read_here(path: str, source: str, *columns: bool, notes: Notes) -> CounterSet:
    """The same from a file, in this process (see `sandbox`)."""
    notes("begin", None)
    with Path(path).open("rb") as file:
        encoding = encoding_of(file.read(1 << 16))
    with Path(path).open(encoding=encoding, errors="replace", newline="") as lines:
        return read_ncu_csv(lines, source)
