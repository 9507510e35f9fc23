"""Reads the CSV that Nsight Compute prints: `--csv --page raw` and `--csv --page details`.

It exists because this text is often all that is left of a capture: it was pasted from a terminal or cut
out of a job's log, and the `.ncu-rep` is gone. So the reader trusts nothing about the file but its header:
log lines may stand anywhere, units are scaled to taste, numbers follow the locale of the machine that
printed them, and range names are not escaped.

It knows the text and nothing of analysis: one `Action` a result, counters in base units, and for everything
it could not read a `Diagnosis` instead of a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from attrs import Factory, define, field

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.device_facts import device_facts
from llm_perf_opt.readers.ncu_worker import LARGEST_COUNTER, LARGEST_FACT
from llm_perf_opt.readers.plausible import LARGEST_DEVICE
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Rule

_EXPECTED = "Expected the text of `ncu --csv --page raw` or `ncu --csv --page details`."
_CHECK_FILTER = "Check the NVTX filter against the ranges the program really has: `llm-perf ranges INPUT`."

# A raw page is about 15 KB a line; far beyond that it is no CSV of ncu and must not fill the memory.
_LONGEST_LINE = 16 * 1024 * 1024
# Range names and rule texts may hold newlines. A record still open after this many lines is damaged.
_MOST_LINES_A_RECORD = 200

# Facts about the device, the launch and the profiler, and samples: the same that are left out of `.ncu-rep`.
_NOT_METRICS = (
    *("device__", "launch__", "profiler__", "numa__", "nvlink__", "c2clink__"),
    *("breakdown:", "group:", "pmsampling:", "source__", "derived_temp", "smsp__pcsamp"),
)
_ASKED_ONE_BY_ONE = "Command line profiler metrics"  # stands where a section would, and is none
_STATIC_SHARED = "launch__shared_mem_per_block_static"
_DYNAMIC_SHARED = "launch__shared_mem_per_block_dynamic"
_DISPLAY_NAME = "device__attribute_display_name"

_IDENTITY_COLUMNS = frozenset(
    {
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
        *("Block Size", "Grid Size", "Device", "CC"),
    }
)

# --- what the details page calls a section, and what the rest of ncu calls it ------------------------------

_SECTION_IDENTIFIERS = {
    "C2CLink": "C2CLink",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "GPU Speed Of Light": "SpeedOfLight",
    "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)": (
        "SpeedOfLight_HierarchicalDoubleRooflineChart"
    ),
    "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)": ("SpeedOfLight_HierarchicalHalfRooflineChart"),
    "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)": (
        "SpeedOfLight_HierarchicalSingleRooflineChart"
    ),
    "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)": ("SpeedOfLight_HierarchicalTensorRooflineChart"),
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
    "Instruction Statistics": "InstructionStats",
    "Launch Statistics": "LaunchStats",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Memory Workload Analysis Chart": "MemoryWorkloadAnalysis_Chart",
    "Memory Workload Analysis Tables": "MemoryWorkloadAnalysis_Tables",
    "NUMA Affinity": "NumaAffinity",
    "NVLink": "Nvlink",
    "NVLink Tables": "Nvlink_Tables",
    "NVLink Topology": "Nvlink_Topology",
    "PM Sampling": "PmSampling",
    "PM Sampling: Warp States": "PmSampling_WarpStates",
    "Scheduler Statistics": "SchedulerStats",
    "Source Counters": "SourceCounters",
    "Warp State Statistics": "WarpStateStats",
}

# Sections that describe the launch or the machine, whatever their labels: nothing in them is a counter.
_DESCRIPTIVE_SECTIONS = frozenset(("LaunchStats", "NumaAffinity", "Nvlink_Topology", "PmSampling"))

# Learnt from ncu itself (`--print-metric-name label-name`) on reports of 2022 to 2025. A label that means
# different metrics on different chips is not here: its name stays as printed.
_LABELS: dict[str, dict[str, str]] = {
    "SpeedOfLight": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "SpeedOfLight_RooflineChart": {
        "Predicated-On DFMA Thread Instructions Executed Per Cycle": (
            "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum.per_cycle_elapsed"
        ),
        "Predicated-On FFMA Thread Instructions Executed Per Cycle": (
            "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"
        ),
        "Theoretical Predicated-On DFMA Thread Instructions Executed": (
            "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained"
        ),
        "Theoretical Predicated-On FFMA Thread Instructions Executed": (
            "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"
        ),
    },
    "ComputeWorkloadAnalysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    },
    "MemoryWorkloadAnalysis": {
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "dram__bytes.sum.per_second",
    },
    "Occupancy": {
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    },
    "LaunchStats": {
        "Dynamic Shared Memory Per Block": _DYNAMIC_SHARED,
        "Static Shared Memory Per Block": _STATIC_SHARED,
    },
    "WorkloadDistribution": {
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
        "Average L1 Active Cycles": "l1tex__cycles_active.avg",
        "Average L2 Active Cycles": "lts__cycles_active.avg",
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average SMSP Active Cycles": "smsp__cycles_active.avg",
        "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
        "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
        "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
    },
    "InstructionStats": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "SchedulerStats": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    },
    "WarpStateStats": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": ("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "SourceCounters": {
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    },
}

# --- units -------------------------------------------------------------------------------------------------

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


# --- numbers -----------------------------------------------------------------------------------------------

# ncu prints in the locale of its machine: 26802, 26,802, 26.802 and 26 802 (with a no-break space) are all
# real. Everything but digits and the two marks that can be a decimal mark only groups digits.
_GROUPING = re.compile("(?<=\\d)[\u0020\u00a0\u2009\u202f'\u2019](?=\\d)")
_NUMBER = re.compile(r"[+-]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?")
# The raw page prints its floats this way in every locale, next to integers that do follow the locale.
_C_FLOAT = re.compile(r"[+-]?\d+\.\d{6}")


def decimal_mark(text: str) -> str | None:
    """The decimal mark this number proves, or None where it proves nothing."""
    number = _bare_number(text)
    if not _NUMBER.fullmatch(number) or _C_FLOAT.fullmatch(number):
        return None
    digits = number.lstrip("+-").lower().partition("e")[0]
    dots, commas = digits.count("."), digits.count(",")
    if dots and commas:
        return "." if digits.rfind(".") > digits.rfind(",") else ","
    mark, count = (".", dots) if dots else (",", commas)
    if count == 0 or _is_ambiguous(digits):
        return None
    if count > 1:  # a mark that comes twice groups, so the other one is the decimal mark
        return "," if mark == "." else "."
    return mark


def _is_ambiguous(digits: str) -> bool:
    """True for `26.802` and `1,399`: three digits behind one mark can be thousands or thousandths."""
    head, mark, tail = digits.replace(",", ".").partition(".")
    return bool(mark) and len(tail) == 3 and tail.isdigit() and 1 <= len(head) <= 3 and head[0] != "0"


def parse_number(text: str, mark: str = ".") -> float | None:
    """The number in a cell, or None where there is none: `n/a`, `no data`, text, infinities and NaN."""
    number = _bare_number(text)
    if not _NUMBER.fullmatch(number):
        return None
    if mark == ".":
        number = number.replace(",", "")
    elif not _C_FLOAT.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    try:
        value = float(number)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bare_number(text: str) -> str:
    # `--print-metric-instances values` appends the instances: `128 (64; 64)`.
    return _GROUPING.sub("", text.partition(" (")[0].strip())


# --- records -----------------------------------------------------------------------------------------------

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


# --- ranges ------------------------------------------------------------------------------------------------

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
            ranges.setdefault(parsed[0], []).append(parsed[1])
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


# --- the file ----------------------------------------------------------------------------------------------

_DIMENSIONS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_RECORD_START = re.compile(r'"?\d+"?,')
_RECORD_START_WITH_PROCESS = re.compile(r'"?\d+"?,"?\d+"?,')
_NOTHING_PROFILED = re.compile(r"==WARNING== No \w+ were profiled")
_LABEL_AND_NAME = re.compile(r".* \(([a-z]\w*_[\w.:]*)\)")


@define
class _Columns:
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
    def of(names: list[str], quoted: bool) -> _Columns:
        at = {name: i for i, name in reversed(list(enumerate(names)))}
        push_pop = next((i for i, name in enumerate(names) if "Push/Pop_Range" in name), None)
        start_end = next((i for i, name in enumerate(names) if "Start/Stop_Range" in name), None)
        return _Columns(
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


@define
class _Text:
    """The state of one file: which header rules, which record is open, what was found."""

    source: str
    columns: _Columns | None = None
    actions: list[Action] = Factory(list)
    by_id: dict[tuple[str, str], Action] = Factory(dict)
    metric_info: dict[str, MetricInfo] = Factory(dict)
    section_metrics: dict[str, list[str]] = Factory(dict)
    gpus: dict[int, str] = Factory(dict)
    gpu_facts: dict[int, dict[str, Any]] = Factory(dict)
    mark: str | None = None  # the decimal mark, once a number has proven it
    waiting: list[tuple[_Columns, list[str]]] = Factory(list)  # rows that need the mark to be read
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
        if not text and not self.open_lines:  # a file of nothing else must not take for ever
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
        self.columns = _Columns.of(names, quoted=text.startswith('"'))
        self.by_id = {}  # another header is another output: its ids begin anew
        return True

    def _note_log(self, text: str) -> None:
        if _NOTHING_PROFILED.match(text):
            self.nothing_profiled = True
        elif text.startswith("==ERROR==") and not self.first_error:
            self.first_error = text

    def _start_record(self, columns: _Columns, text: str, line: str) -> None:
        if columns.quoted and not text.startswith('"'):
            self._note_log(text)
            return
        fields = columns.split(text)
        if fields is not None:
            self._record(columns, fields)
        elif columns.record_start.match(text):
            self.open_lines = [line]

    def _continue_record(self, columns: _Columns, line: str) -> None:
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

    def _record(self, columns: _Columns, fields: list[str]) -> None:
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
            elif self.waiting or any(_is_ambiguous(_bare_number(cell)) for cell in cells):
                self.waiting.append((columns, fields))
                return
        self._read(columns, fields)

    def _read_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for columns, fields in waiting:
            self._read(columns, fields)

    def _read(self, columns: _Columns, fields: list[str]) -> None:
        if columns.details:
            self._read_details(columns, fields)
        else:
            self._read_raw(columns, fields)

    def _number(self, text: str) -> float | None:
        return parse_number(text, self.mark or ".")

    def _new_action(self, columns: _Columns, fields: list[str]) -> Action:
        name = columns.cell(fields, "Kernel Name")
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

    def _read_raw(self, columns: _Columns, fields: list[str]) -> None:
        action = self._new_action(columns, fields)
        for i, name in columns.values:
            if name.startswith(_NOT_METRICS) or not fields[i]:
                continue
            value = self._number(fields[i])
            if value is not None:
                unit, factor = columns.units.get(i, ("", 1.0))
                self._add_metric(action, name, value * factor, unit)
        self._read_launch(action, columns, fields)

    def _read_launch(self, action: Action, columns: _Columns, fields: list[str]) -> None:
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
        for name in (_STATIC_SHARED, _DYNAMIC_SHARED):
            if name in columns.at:
                factor = columns.units.get(columns.at[name], ("", 1.0))[1]
                self._add_shared(action, name, columns.cell(fields, name), factor)

    def _add_shared(self, action: Action, name: str, text: str, factor: float) -> None:
        """Takes a size only where it was printed to the byte: it is part of the kernel's signature."""
        value = self._number(text)
        if value is None or not 0 <= value * factor < 2**31:
            return
        # Floats have 2 or 6 decimals on every page: 2 are too few for anything but bytes.
        if value and factor > 1 and not (factor <= 1e6 and _C_FLOAT.fullmatch(_bare_number(text))):
            return
        parts = self.shared.setdefault(id(action), {})
        parts[name] = round(value * factor)
        if len(parts) == 2:
            action.shared_memory = sum(parts.values())

    # -- details page --------------------------------------------------------------------------------------

    def _read_details(self, columns: _Columns, fields: list[str]) -> None:
        key = (columns.cell(fields, "Process ID"), columns.cell(fields, "ID"))
        action = self.by_id.get(key)
        if action is None:
            action = self.by_id[key] = self._new_action(columns, fields)
        section = _section(columns, fields)
        if section and section not in action.sections:
            action.sections.append(section)
        if columns.cell(fields, "Metric Name"):
            self._read_labelled(action, columns, fields)
        if columns.cell(fields, "Rule Name"):
            action.rules.append(_rule(columns, fields))

    def _read_labelled(self, action: Action, columns: _Columns, fields: list[str]) -> None:
        name = _metric_name(
            columns.cell(fields, "Section Name"),
            columns.cell(fields, "Body Item Label"),
            columns.cell(fields, "Metric Name"),
        )
        text = columns.cell(fields, "Metric Value")
        unit, factor = base_unit(columns.cell(fields, "Metric Unit"))
        if name in (_STATIC_SHARED, _DYNAMIC_SHARED):
            self._add_shared(action, name, text, factor)
        if name is None or name.startswith(_NOT_METRICS):
            return
        value = self._number(text)
        if value is not None:
            self._add_metric(action, name, value * factor, unit)
            shown = self.section_metrics.setdefault(_section(columns, fields), [])
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

    def _last_line_was_cut(self, columns: _Columns) -> bool:
        text = self.last_line
        if not columns.quoted or text.endswith(("\n", "\r")) or not text.startswith('"'):
            return False
        return split_record(text)[0] != columns.names and columns.split(text) is None

    def _without_header(self) -> CounterSet:
        if self.nothing_profiled:
            return self._counters([self._no_results("ncu says: No kernels were profiled.")])
        raise UnreadableInput(f"{self.source} {self._what_it_is()}.", _EXPECTED)

    def _what_it_is(self) -> str:
        if not self.any_line:
            return "is empty, which is what ncu prints when its filters leave no result"
        if self.first_error:
            return f"is a log of ncu without results; its first error is {self.first_error[:300]!r}"
        if self.summary:
            return "is a summary of ncu (--print-summary), which has no single results"
        return "is text without a header of Nsight Compute's CSV"

    def _no_results(self, cause: str) -> Diagnosis:
        message = f"{self.source} holds no results. {cause}"
        return Diagnosis("NO_RESULTS", "warning", message, _CHECK_FILTER)

    def _diagnostics(self) -> list[Diagnosis]:
        found: list[Diagnosis] = []
        if not self.actions:
            found.append(self._no_results("It has the header of ncu's CSV and no row below it."))
        if self.damaged:
            message = f"{self.damaged} rows of {self.source} are damaged and were left out."
            found.append(Diagnosis("DAMAGED_ROWS", "warning", message, "Print the CSV again."))
        if self.failed_ranges:
            message = f"{self.failed_ranges} NVTX range names of {self.source} could not be read."
            fix = "Read the .ncu-rep instead: ncu does not escape names in its CSV."
            found.append(Diagnosis("UNREADABLE_RANGES", "warning", message, fix))
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


def _section(columns: _Columns, fields: list[str]) -> str:
    """The identifier of the row's section. Rows of rules print it, rows of metrics print the title."""
    title = columns.cell(fields, "Section Name")
    return "" if title == _ASKED_ONE_BY_ONE else _SECTION_IDENTIFIERS.get(title, title)


def _metric_name(section: str, body: str, label: str) -> str | None:
    """The metric behind a label; None where the section holds no counters."""
    identifier = _SECTION_IDENTIFIERS.get(section, section)
    if "__" in label and " " not in label:
        return label
    both = _LABEL_AND_NAME.fullmatch(label)
    if both:
        return both.group(1)
    if not body and label in _LABELS.get(identifier, {}):
        return _LABELS[identifier][label]
    if identifier in _DESCRIPTIVE_SECTIONS:
        return None
    return "/".join(part for part in (section, body, label) if part)


def _rule(columns: _Columns, fields: list[str]) -> Rule:
    # The speed-up is printed with a point in every locale.
    speedup = parse_number(columns.cell(fields, "Estimated Speedup"))
    return Rule(
        rule=columns.cell(fields, "Rule Name"),
        title="",  # this page does not print titles
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
