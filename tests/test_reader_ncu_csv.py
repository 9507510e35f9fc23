"""What ncu prints as CSV is read to the last printed digit, or refused in one sentence."""

from __future__ import annotations

import csv
import io
import lzma
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.ncu_csv import read_ncu_csv
from llm_perf_opt.readers.ncu_numbers import base_unit, decimal_mark, parse_number, rollup_of
from llm_perf_opt.readers.ncu_records import parse_ranges
from llm_perf_opt.regions.columns import Action, CounterSet

RECORDINGS = Path(__file__).parent / "recordings"
SHARED = Path(__file__).parents[2] / "shared" / "data"

RAW = "ncu-2025.3.1-h200-basic-raw.csv"
RAW_BASE = "ncu-2025.3.1-h200-basic-raw-base.csv"
RAW_GERMAN = "ncu-2024.1.1-h200-basic-raw-german.csv"
DETAILS = "ncu-2025.3.1-h200-basic-details.csv"
DETAILS_GERMAN = "ncu-2024.1.1-h200-basic-details-german.csv"
DETAILS_FRENCH = "ncu-2024.1.1-h200-basic-details-french.csv"
LIVE_RAW = "ncu-2025.3.1-h200-live-raw.csv"
LIVE_DETAILS = "ncu-2025.3.1-h200-live-details.csv"
NAMES = "ncu-2024.1.1-h200-names-details.csv"

NOT_METRICS = ("device__", "launch__", "profiler__", "numa__", "nvlink__", "c2clink__")
LEFT_OUT = (*NOT_METRICS, "breakdown:", "derived_temp", "derived__pct_occupancy_per_")

PUSH_POP = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
START_END = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
IDENTITY = ["ID", "Process ID", "Process Name", "Host Name", PUSH_POP, START_END, "Kernel Name"]
IDENTITY += ["Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]


def text_of(name: str) -> str:
    return (RECORDINGS / name).read_bytes().decode("utf-8")


def read(text: str) -> CounterSet:
    return read_ncu_csv(io.StringIO(text, newline=""), "some.csv")


def read_recording(name: str) -> CounterSet:
    return read(text_of(name))


def quoted(cells: list[str]) -> str:
    """A line as ncu prints it: it doubles its own quotes around ranges, and nothing else."""
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def raw_page(metrics: dict[str, tuple[str, str]], push_pop: str = "", start_end: str = "", name: str = "kernel") -> str:
    """A raw page of one launch; `metrics` is name -> (unit, printed value)."""
    row = ["0", "77", "python", "127.0.0.1", push_pop, start_end, name, "1", "7"]
    row += ["(128, 1, 1)", "(4, 2, 1)", "0", "9.0"]
    units = [""] * len(IDENTITY) + [unit for unit, _ in metrics.values()]
    values = row + [value for _, value in metrics.values()]
    return quoted(IDENTITY + list(metrics)) + quoted(units) + quoted(values)


# --- against NVIDIA's own reader ---------------------------------------------------------------------------


def oracle(name: str, folder: Path) -> list[Any]:
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed")
    path = folder / "report.ncu-rep"
    path.write_bytes(lzma.decompress((RECORDINGS / f"ncu-2025.3.1-h200-{name}.ncu-rep.xz").read_bytes()))
    report = ncu_report.load_report(str(path))
    return [action for result_range in report for action in result_range]


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return oracle("decoder-2layers-basic", tmp_path_factory.mktemp("basic"))


def printed_precision(printed: str, unit: str) -> float:
    """Half of the last printed digit, in base units."""
    # Floats have 2 or 6 decimals in every locale; three digits behind a mark are a thousand.
    tail = printed.replace(",", ".").rpartition(".")[2] if set(printed) & set(".,") else ""
    decimals = len(tail) if len(tail) != 3 else 0
    prefix = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    scale = prefix.get(unit[:1], prefix.get(unit.partition("/")[2][:1], 1.0))
    scale = {"usecond": 1e3, "us": 1e3, "msecond": 1e6, "cycle/nsecond": 1e9}.get(unit, scale)
    return 0.5001 * scale * 10.0**-decimals


@pytest.mark.parametrize("name", [RAW, RAW_BASE, RAW_GERMAN])
def test_every_counter_of_a_raw_page_is_the_one_in_the_report(name: str, basic: list[Any]) -> None:
    actions = read_recording(name).actions
    header, units, *rows = csv.reader(io.StringIO(text_of(name), newline=""))
    assert len(actions) == len(rows) >= 3
    for action, truth, row in zip(actions, basic, rows, strict=False):
        printed = dict(zip(header, row, strict=True))
        unit_of = dict(zip(header, units, strict=True))
        expected = {n for n in truth.metric_names() if not n.startswith(LEFT_OUT)}
        assert set(action.metrics) == expected
        for metric, value in action.metrics.items():
            precision = printed_precision(printed[metric], unit_of[metric])
            assert value == pytest.approx(truth[metric].as_double(), abs=precision), metric


@pytest.mark.parametrize("name", [RAW, RAW_BASE, RAW_GERMAN])
def test_units_are_named_as_the_report_names_them(name: str, basic: list[Any]) -> None:
    counters = read_recording(name)
    wrong = {m: i.unit for m, i in counters.metric_info.items() if i.unit != basic[0][m].unit()}
    assert wrong == {}


@pytest.mark.parametrize("name", [DETAILS, DETAILS_GERMAN, DETAILS_FRENCH])
def test_the_details_page_yields_the_same_counters_under_the_same_names(name: str, basic: list[Any]) -> None:
    counters = read_recording(name)
    for action, truth in zip(counters.actions, basic, strict=False):
        assert len(action.metrics) == 23
        for metric, value in action.metrics.items():
            assert value == pytest.approx(truth[metric].as_double(), rel=0.006, abs=0.006), metric
            assert counters.metric_info[metric].unit == truth[metric].unit()


def test_launches_carry_their_configuration(basic: list[Any]) -> None:
    for action, truth in zip(read_recording(RAW).actions, basic, strict=False):
        grid = tuple(truth[f"launch__grid_dim_{axis}"].as_uint64() for axis in "xyz")
        block = tuple(truth[f"launch__block_dim_{axis}"].as_uint64() for axis in "xyz")
        parts = [truth[f"launch__shared_mem_per_block_{p}"].as_uint64() for p in ("static", "dynamic")]
        assert (action.grid, action.block, action.shared_memory) == (grid, block, sum(parts))
        assert action.passes == truth["profiler__replayer_passes"].as_uint64()
        assert (action.device, action.process, action.kind) == (0, 1984, "kernel")


def test_hostile_range_names_are_recovered(tmp_path: Path) -> None:
    actions = read_recording(NAMES).actions
    truth = oracle("names", tmp_path)
    assert len(actions) == len(truth) == 92
    for action, expected in zip(actions, truth, strict=True):
        state = expected.nvtx_state()
        push_pop: dict[str, list[str]] = {}
        start_end: dict[str, list[str]] = {}
        for key in state.domains() if state else ():
            domain = state[key].name().replace("<default domain>", "")
            if state[key].push_pop_ranges():
                push_pop[domain] = list(state[key].push_pop_ranges())
            if state[key].start_end_ranges():
                start_end[domain] = list(state[key].start_end_ranges())
        assert (action.push_pop, action.start_end) == (push_pop, start_end)


def test_reports_of_other_chips_and_versions_agree_as_well() -> None:
    """A column of counters printed from a public report, for the units an H200 does not print."""
    if not SHARED.is_dir():
        pytest.skip("the shared recordings are not here")
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed")
    truth = ncu_report.load_report(str(SHARED / "public" / "panjd123+cutlass+report80.ncu-rep"))[0][0]
    names = ["dram__bytes.sum.per_second", "lts__t_sectors.sum.per_second", "gpc__cycles_elapsed.avg.per_second"]
    units = ["Gbyte/second", "sector/nsecond", "cycle/nsecond"]
    values = [f"{truth[name].as_double() / 1e9:.2f}" for name in names]
    page = raw_page(dict(zip(names, zip(units, values, strict=True), strict=True)))
    counters = read(page)
    for name in names:
        assert counters.actions[0].metrics[name] == pytest.approx(truth[name].as_double(), abs=5.1e6)
        assert counters.metric_info[name].unit == truth[name].unit()


# --- where the table stands --------------------------------------------------------------------------------


def test_the_table_is_found_behind_the_log_of_a_live_run() -> None:
    counters = read_recording(LIVE_RAW)
    assert len(counters.actions) == 3
    assert counters.actions[0].metrics["gpu__time_duration.sum"] == 6944.0
    assert counters.actions[0].metrics["dram__bytes_read.sum"] == 3617536.0
    assert counters.actions[0].push_pop == {"LLM": ["prefill"]}
    assert counters.environment["gpus"] == {0: "NVIDIA H200"}
    assert counters.diagnostics == []


@pytest.mark.parametrize("name", [LIVE_RAW, LIVE_DETAILS])
def test_log_lines_between_and_behind_the_rows_change_nothing(name: str) -> None:
    lines = text_of(name).splitlines(keepends=True)
    noise = ["==PROF== Disconnected from process 1\n", "token 12, 13, 14\n", '"quoted" output\n', "\n"]
    mixed = "".join(line + noise[i % len(noise)] for i, line in enumerate(lines))
    assert read(mixed).actions[0].metrics == read_recording(name).actions[0].metrics
    assert len(read(mixed).actions) == len(read_recording(name).actions)


def test_windows_line_ends_and_a_byte_order_mark_are_no_obstacle() -> None:
    text = "\ufeff" + text_of(RAW).replace("\n", "\r\n")
    assert [a.metrics for a in read(text).actions] == [a.metrics for a in read_recording(RAW).actions]


def test_a_table_saved_again_without_needless_quotes_is_read() -> None:
    rows = list(csv.reader(io.StringIO(text_of(RAW), newline="")))
    again = io.StringIO(newline="")
    csv.writer(again).writerows(rows)
    ours = read(again.getvalue()).actions
    theirs = read_recording(RAW).actions
    assert [(a.metrics, a.push_pop, a.grid) for a in ours] == [(a.metrics, a.push_pop, a.grid) for a in theirs]


def test_two_outputs_in_one_file_do_not_share_results() -> None:
    counters = read(text_of(LIVE_DETAILS) * 2)
    assert len(counters.actions) == 2
    assert counters.actions[0].metrics == counters.actions[1].metrics


def test_results_of_two_processes_stay_apart() -> None:
    actions = read_recording("ncu-2024.1.1-h200-ranks-details.csv").actions
    assert [a.process for a in actions].count(1458) == [a.process for a in actions].count(1459) == 6
    assert all(len(a.metrics) == 3 for a in actions)


def test_ranges_and_graphs_are_told_from_kernels() -> None:
    ranges = read_recording("ncu-2024.1.1-h200-app-range-raw.csv").actions
    assert [(a.kind, a.push_pop, a.grid) for a in ranges] == [
        ("range", {"LLM": ["prefill"]}, None),
        ("range", {"LLM": ["decode_all"]}, None),
    ]
    assert ranges[0].metrics["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] == 4113504927744.0
    graphs = read_recording("ncu-2024.1.1-h200-graph-whole-raw.csv").actions
    assert [(a.kind, a.push_pop) for a in graphs] == [("graph", {"LLM": ["replay_all", "decode_step"]})] * 2


def test_a_kernel_may_be_called_range() -> None:
    assert read(raw_page({}, name="range")).actions[0].kind == "kernel"


@pytest.mark.parametrize(
    ("printed", "mangled", "short"),
    [
        ("_Z6kernelPfi", "_Z6kernelPfi", None),
        ("nvjet_sm90_tst_64x64", None, "nvjet_sm90_tst_64x64"),
        ("void f<(int)4>(float *)", None, None),
    ],
)
def test_only_names_that_can_be_recognised_are_filled_in(printed: str, mangled: str | None, short: str | None) -> None:
    action = read(raw_page({}, name=printed)).actions[0]
    assert (action.name, action.mangled, action.short, action.demangled) == (printed, mangled, short, None)


# --- details page ------------------------------------------------------------------------------------------


def test_rules_and_sections_of_the_details_page_are_kept(basic: list[Any]) -> None:
    for action, truth in zip(read_recording(DETAILS).actions, basic, strict=False):
        ours = sorted((rule.rule, rule.estimated_speedup_percent or 0.0) for rule in action.rules)
        theirs = sorted(
            (rule["rule_identifier"], rule.get("speedup_estimation", {}).get("speedup", 0.0))
            for rule in truth.rule_results_as_dicts()
        )
        assert [rule for rule, _ in ours] == [rule for rule, _ in theirs]
        assert [estimate for _, estimate in ours] == pytest.approx([e for _, e in theirs], abs=0.01)
        assert all(rule.message for rule in action.rules)
        assert set(action.sections) == {s.identifier() for s in truth.sections()}


def test_sections_list_their_counters() -> None:
    shown = read_recording(DETAILS).section_metrics
    assert "gpu__time_duration.sum" in shown["SpeedOfLight"]
    assert shown["Occupancy"] == [
        "sm__maximum_warps_avg_per_active_cycle",
        "sm__maximum_warps_per_active_cycle_pct",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "sm__warps_active.avg.per_cycle_active",
    ]
    assert "LaunchStats" not in shown


def details_page(rows: list[tuple[str, str, str, str]]) -> str:
    """A details page of one launch; a row is section, metric, unit, value."""
    identity = ["0", "77", "python", "127.0.0.1", "", "", "kernel", "1", "7", "(128, 1, 1)", "(4, 2, 1)"]
    header = [*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    return quoted(header) + "".join(quoted([*identity, "0", "9.0", *row]) for row in rows)


def test_a_label_nobody_knows_keeps_its_printed_name() -> None:
    counters = read(details_page([("My Section", "Wobble", "Kbyte", "1.50")]))
    assert counters.actions[0].metrics == {"My Section/Wobble": 1500.0}
    assert counters.metric_info["My Section/Wobble"].rollup == "mean"
    assert counters.actions[0].sections == ["My Section"]


@pytest.mark.parametrize("label", ["gpu__time_duration.sum", "Duration (gpu__time_duration.sum)", "Duration"])
def test_all_forms_of_metric_names_lead_to_the_metric(label: str) -> None:
    counters = read(details_page([("GPU Speed Of Light Throughput", label, "us", "1.79")]))
    assert counters.actions[0].time_ns() == pytest.approx(1790.0)


def test_metrics_asked_for_one_by_one_are_in_no_section() -> None:
    counters = read(details_page([("Command line profiler metrics", "dram__bytes_read.sum", "byte", "3")]))
    assert counters.actions[0].metrics == {"dram__bytes_read.sum": 3.0}
    assert counters.actions[0].sections == []


@pytest.mark.parametrize(
    ("dynamic", "total"),
    [
        (("Kbyte/block", "213.19"), None),  # 213,188 bytes: rounded away, and no other size will do
        (("byte/block", "213,188"), 213204),
        (("Kbyte/block", "213.188000"), 213204),
        (("byte/block", "0"), 16),
    ],
)
def test_shared_memory_is_taken_only_where_it_is_exact(dynamic: tuple[str, str], total: int | None) -> None:
    rows = [
        ("Launch Statistics", "Static Shared Memory Per Block", "byte/block", "16"),
        ("Launch Statistics", "Dynamic Shared Memory Per Block", *dynamic),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "30.19"),
    ]
    action = read(details_page(rows)).actions[0]
    assert action.shared_memory == total
    assert set(action.metrics) == {"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"}


# --- numbers and units -------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", ["", "n/a", "N/A", "no data", "nan", "-nan", "inf", "all", "1e999"])
def test_what_was_not_measured_is_absent_and_not_zero(absent: str) -> None:
    page = raw_page({"a__b.sum": ("byte", absent), "c__d.sum": ("byte", "0")})
    assert read(page).actions[0].metrics == {"c__d.sum": 0.0}


@pytest.mark.parametrize(
    ("printed", "base", "factor"),
    [
        ("byte", "byte", 1.0),
        ("Kbyte", "byte", 1e3),
        ("Tbyte/s", "byte/s", 1e12),
        ("Gbyte/second", "byte/s", 1e9),
        ("Kbyte/cycle", "byte/cycle", 1e3),
        ("second", "ns", 1e9),
        ("msecond", "ns", 1e6),
        ("usecond", "ns", 1e3),
        ("us", "ns", 1e3),
        ("ns", "ns", 1.0),
        ("Ghz", "hz", 1e9),
        ("cycle/nsecond", "hz", 1e9),
        ("cycle/second", "hz", 1.0),
        ("sector/nsecond", "sector/s", 1e9),
        ("inst", "inst", 1.0),
        ("%", "%", 1.0),
        ("%/", "%", 1.0),
        ("%/Kbyte", "%/byte", 1e3),
        ("register/thread", "register/thread", 1.0),
        ("", "", 1.0),
    ],
)
def test_units_are_normalised(printed: str, base: str, factor: float) -> None:
    name, scale = base_unit(printed)
    assert name == base
    assert scale == pytest.approx(factor)


@given(st.sampled_from(["K", "M", "G", "T", "P"]), st.sampled_from(["byte", "hz", "byte/block", "byte/s"]))
def test_a_prefix_changes_the_factor_and_never_the_unit(prefix: str, unit: str) -> None:
    base, factor = base_unit(prefix + unit)
    assert base == base_unit(unit)[0]
    assert factor == {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[prefix]


@given(st.text(max_size=30))
def test_any_text_is_a_unit_of_some_kind(unit: str) -> None:
    base, factor = base_unit(unit)
    assert isinstance(base, str)
    assert factor > 0


LOCALES = {
    "C": ("", "."),
    "en_US": (",", "."),
    "de_DE": (".", ","),
    "fr_FR": ("\u202f", ","),
    "ru_RU": ("\u00a0", ","),
    "de_CH": ("\u2019", "."),
}


def as_printed(value: float, decimals: int, group: str, mark: str) -> str:
    return f"{value:,.{decimals}f}".replace(",", "\0").replace(".", mark).replace("\0", group)


@given(st.sampled_from(sorted(LOCALES)), st.sampled_from([0, 2]), st.floats(min_value=0, max_value=1e15).map(float))
def test_numbers_of_every_locale_are_read_as_they_were_meant(locale: str, decimals: int, value: float) -> None:
    group, mark = LOCALES[locale]
    printed = as_printed(value, decimals, group, mark)
    assert parse_number(printed, mark) == float(f"{value:.{decimals}f}")
    # What a number proves is never wrong; a few prove nothing.
    assert decimal_mark(printed) in (None, mark) or group == ""


@given(st.sampled_from(sorted(LOCALES)), st.lists(st.integers(min_value=0, max_value=10**12), max_size=6))
def test_one_number_with_decimals_settles_the_locale_of_the_whole_file(locale: str, counts: list[int]) -> None:
    group, mark = LOCALES[locale]
    metrics = {f"m__{i}.sum": ("inst", as_printed(n, 0, group, mark)) for i, n in enumerate(counts)}
    metrics["gpu__time_duration.sum"] = ("ns", as_printed(1234.56, 2, group, mark))
    action = read(raw_page(metrics)).actions[0]
    assert [action.metrics[f"m__{i}.sum"] for i in range(len(counts))] == counts
    assert action.metrics["gpu__time_duration.sum"] == 1234.56


def test_rows_that_prove_nothing_wait_for_one_that_does() -> None:
    rows = [
        ("Command line profiler metrics", "a__b.sum", "inst", "26.802"),
        ("Command line profiler metrics", "a__c.sum", "inst", "7"),
        ("Command line profiler metrics", "a__d.avg", "inst", "30,19"),
    ]
    assert read(details_page(rows)).actions[0].metrics == {"a__b.sum": 26802.0, "a__c.sum": 7.0, "a__d.avg": 30.19}


def test_without_any_proof_numbers_are_english() -> None:
    rows = [("X", "a__b.sum", "inst", "26,802"), ("X", "a__c.avg", "inst", "26.802")]
    assert read(details_page(rows)).actions[0].metrics == {"a__b.sum": 26802.0, "a__c.avg": 26.802}


def test_instances_behind_a_value_are_not_part_of_it() -> None:
    assert parse_number("90,800 (6,400; 84,400)") == 90800.0


@given(st.text(max_size=20))
def test_any_text_is_a_finite_number_or_none(text: str) -> None:
    for mark in ".,":
        value = parse_number(text, mark)
        assert value is None or abs(value) < float("inf")


@pytest.mark.parametrize(
    ("metric", "rollup"),
    [
        ("dram__bytes_read.sum", "sum"),
        ("gpc__cycles_elapsed.max", "max"),
        ("sm__cycles_active.min", "min"),
        ("sm__cycles_active.avg", "mean"),
        ("dram__bytes.sum.per_second", "mean"),
        ("sm__throughput.max.pct_of_peak_sustained_elapsed", "mean"),
        ("lts__t_sector_hit_rate.pct", "mean"),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", "mean"),
        ("inst_executed", "mean"),
        ("sum", "mean"),
    ],
)
def test_only_plain_counters_add_up(metric: str, rollup: str) -> None:
    assert rollup_of(metric) == rollup


# --- ranges ------------------------------------------------------------------------------------------------


def entry(domain: str, name: str) -> str:
    return f'""{domain}:{name}:none:none:RGB:0xff:REGISTERED:{name}""'


# ncu doubles nothing inside a name, so a name with two quotes in a row cannot be told from the end of one.
NAMES_NCU_CAN_PRINT = st.text(max_size=12).filter(lambda name: '""' not in name)
COLONS = st.lists(st.sampled_from(["a", "none", "REGISTERED", "RGB", "", "0xff"]), max_size=9).map(":".join)


@given(st.lists(st.tuples(st.sampled_from(["LLM", "My.Dom", "d/e"]), NAMES_NCU_CAN_PRINT | COLONS), max_size=4))
def test_names_with_separators_in_them_are_recovered(stack: list[tuple[str, str]]) -> None:
    cell = "77  " + "  ".join(entry(*place) for place in stack) + " " if stack else ""
    expected: dict[str, list[str]] = {}
    for domain, name in stack:
        expected.setdefault(domain, []).append(name)
    assert parse_ranges(cell) == (expected, 0)


def test_ranges_without_attributes_are_read_by_position() -> None:
    cell = '1  ""<default domain>:model:layers.0:none:none:none:none:none:none"" '
    assert parse_ranges(cell) == ({"": ["model:layers.0"]}, 0)


def test_start_end_ranges_lose_their_id() -> None:
    cell = ' ""3:<default domain>:se/name:none:none:RGB:0xff:REGISTERED:se/name"" '
    assert parse_ranges(cell, start_end=True) == ({"": ["se/name"]}, 0)


@given(st.text(max_size=60))
def test_any_text_in_a_range_column_is_survived(cell: str) -> None:
    ranges, failed = parse_ranges(cell)
    assert failed >= 0
    assert all(names for names in ranges.values())


@given(NAMES_NCU_CAN_PRINT)
def test_a_row_survives_quotes_commas_and_line_breaks_in_a_name(name: str) -> None:
    # A line inside a name that looks like the beginning of a row is one to every reader.
    assume(not any(line.lstrip('"')[:1].isdigit() for line in name.splitlines()))
    page = raw_page({"a__b.sum": ("inst", "5")}, push_pop=f"77  {entry('LLM', name)} ")
    counters = read(page)
    assert counters.actions[0].push_pop == {"LLM": [name]}
    assert counters.actions[0].metrics == {"a__b.sum": 5.0}


def test_a_name_that_cannot_be_read_is_reported() -> None:
    counters = read(raw_page({}, push_pop='77  ""nonsense"" '))
    assert [d.code for d in counters.diagnostics] == ["UNREADABLE_RANGES"]


# --- what is no table, or not a whole one ------------------------------------------------------------------


def test_a_header_without_rows_is_an_empty_result() -> None:
    counters = read(quoted([*IDENTITY, "gpu__time_duration.sum"]))
    assert counters.actions == []
    assert [(d.code, d.severity) for d in counters.diagnostics] == [("NO_RESULTS", "warning")]


def test_a_log_that_says_nothing_was_profiled_is_an_empty_result_with_its_cause() -> None:
    counters = read("==PROF== Connected to process 5\n==WARNING== No kernels were profiled.\nbye\n")
    [diagnosis] = counters.diagnostics
    assert diagnosis.code == "NO_RESULTS"
    assert "No kernels were profiled" in diagnosis.message
    assert "llm-perf ranges" in diagnosis.fix


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("hello\nworld\n", "without a header"),
        ("a,b\n1,2\n", "without a header"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ERR_NVGPUCTRPERM"),
        ('"Process ID","Kernel Name","Invocations","Minimum"\n"1","k","3","4"\n', "--print-summary"),
    ],
)
def test_other_text_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UnreadableInput, match=says) as refusal:
        read(text)
    assert refusal.value.message.startswith("some.csv")
    assert ("-o NAME" if says == "ERR_NVGPUCTRPERM" else "ncu --csv") in refusal.value.fix


@pytest.mark.parametrize("name", [LIVE_RAW, RAW, LIVE_DETAILS, NAMES])
def test_a_last_line_cut_anywhere_is_called_truncated(name: str) -> None:
    text = text_of(name)
    last = text.rstrip("\n").rfind("\n") + 1
    # The comma that ends rows of the details page may be missing: the row is whole without it.
    end = len(text.rstrip("\n").removesuffix(","))
    lengths = sorted({last + 1, last + 2, end - 1, *range(last + 3, end - 1, 1 + (end - last) // 60)})
    for length in lengths:
        with pytest.raises(UnreadableInput, match="truncated"):
            read(text[:length])
    assert len(read(text[:end]).actions) == len(read(text).actions)


def test_a_cut_header_is_called_truncated() -> None:
    with pytest.raises(UnreadableInput, match="truncated"):
        read(text_of(RAW)[:2000])


def test_a_damaged_row_in_the_middle_is_left_out_and_counted() -> None:
    lines = text_of(RAW).splitlines(keepends=True)
    lines[3] = lines[3][:500] + "\n"
    counters = read("".join(lines))
    assert len(counters.actions) == len(lines) - 3
    assert [d.code for d in counters.diagnostics] == ["DAMAGED_ROWS"]


@pytest.mark.parametrize("name", [RAW, DETAILS, NAMES, LIVE_RAW])
def test_damaged_bytes_are_refused_or_survived(name: str) -> None:
    rng = random.Random(name)
    original = (RECORDINGS / name).read_bytes()[:30000]
    for _ in range(75):
        data = bytearray(original)
        for _ in range(rng.choice([1, 3, 30])):
            at = rng.randrange(len(data))
            kind = rng.randrange(3)
            if kind == 0:
                data[at] = rng.choice(b'",\n\r\0:.0' + bytes([rng.randrange(256)]))
            elif kind == 1:
                del data[at : at + rng.randrange(1, 400)]
            else:
                data[at:at] = data[: rng.randrange(1, 400)]
        try:
            counters = read(bytes(data).decode("utf-8", "replace"))
        except UnreadableInput:
            continue
        assert all(isinstance(action, Action) for action in counters.actions)


def test_a_file_in_another_encoding_is_refused() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b'"ID","Kernel Name"\n\xff\xfe\n'), encoding="utf-8")
    with pytest.raises(UnreadableInput, match="encoding"):
        read_ncu_csv(stream, "some.csv")


def test_millions_of_empty_lines_take_no_time() -> None:
    text = (RECORDINGS / RAW).read_text(encoding="utf-8")
    began = time.process_time()
    found = read_ncu_csv(io.StringIO(text + "\n" * 2_000_000), "x.csv")
    assert time.process_time() - began < 5
    assert len(found.actions) == len(read_ncu_csv(io.StringIO(text), "x.csv").actions) > 0
