"""The tools' own help decides what may be asked of them.

The help texts are those of ncu and nsys 2025.3.1 as installed beside an H200; the transcripts say what
these two versions really did with each command line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.nsight.help_text import parse_listing, parse_ncu_help, parse_nsys_help, validate

TRANSCRIPTS = Path(__file__).parent / "transcripts"


def text(name: str) -> str:
    return (TRANSCRIPTS / name).read_text()


NCU_HELP, SETS, SECTIONS = (text(f"ncu-2025.3.1-{name}.txt") for name in ("help", "sets", "sections"))
NSYS_HELP = text("nsys-2025.3.1-help.txt")
NCU, NSYS = parse_ncu_help(NCU_HELP, SETS, SECTIONS), parse_nsys_help(NSYS_HELP)
REAL = json.loads(text("ncu-nsys-2025.3.1-h200.json"))


# -- reading ----------------------------------------------------------------------------------------


def test_no_option_of_ncu_is_lost() -> None:
    assert set(re.findall(r"^  (?:-\w \[ )?(--[\w-]+)", NCU_HELP, re.MULTILINE)) <= set(NCU)
    assert NCU["-k"] is NCU["--kernel-name"]


def test_no_option_of_nsys_is_lost() -> None:
    mentioned = re.findall(r"^\t(?:\(\w+\) )?(?:-\w, )?(--[\w-]+)(?!\[)\b", NSYS_HELP, re.MULTILINE)
    assert {name for name in mentioned if not name.endswith("-")} <= {*NSYS, "--nvtx-domain"}
    assert {"--nvtx-domain-include", "--nvtx-domain-exclude", "--syscall", "--enable"} <= set(NSYS)
    assert NSYS["-t"] is NSYS["--trace"]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--replay-mode", ("kernel", "application", "range", "app-range")),
        ("--target-processes", ("application-only", "all")),
        ("--nvtx-push-pop-scope", ("thread", "process")),
        ("--app-replay-match", ("name", "grid", "all")),
        ("--app-replay-mode", ("strict", "balanced", "relaxed")),
        ("--filter-mode", ("global", "per-gpu", "per-launch-config")),
        ("--graph-profiling", ("node", "graph")),
        ("--kernel-name-base", ("function", "demangled", "mangled")),
        ("--clock-control", ("base", "none", "reset")),
        ("--cache-control", ("all", "none")),
        ("--import-sass", ("on", "off", "yes", "no", "1", "0", "true", "false")),
        ("--print-source", ("sass", "ptx", "cuda", "cuda,sass")),
        ("--print-summary", ("none", "per-gpu", "per-kernel", "per-nvtx")),
        ("--set", ("basic", "detailed", "full", "nvlink", "pmsampling", "roofline")),
    ],
)
def test_values_of_ncu(option: str, values: tuple[str, ...]) -> None:
    assert NCU[option].values == values


@pytest.mark.parametrize(
    "option", ["--kernel-name", "--kernel-id", "--metrics", "--range-filter", "--log-file", "--nvtx-include", "--kill"]
)
def test_options_of_ncu_that_take_anything(option: str) -> None:
    assert NCU[option].takes_value
    assert NCU[option].values is None


@pytest.mark.parametrize("option", ["--nvtx", "--csv", "--force-overwrite", "--list-sets"])
def test_switches_of_ncu(option: str) -> None:
    assert not NCU[option].takes_value


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--sample", ("process-tree", "system-wide", "none")),
        ("--cpuctxsw", ("process-tree", "system-wide", "none")),
        ("--capture-range", ("none", "cudaProfilerApi", "nvtx", "hotkey")),
        ("--capture-range-end", ("none", "stop", "stop-shutdown", "repeat[:N]", "repeat-shutdown:N")),
        ("--force-overwrite", ("true", "false")),
        ("--nvtx-capture", None),
        ("--kill", None),
        ("--gpu-metrics-devices", None),
        ("--samples-per-backtrace", None),
        ("--cudabacktrace", None),
        ("--hotkey-capture", None),
    ],
)
def test_values_of_nsys(option: str, values: tuple[str, ...] | None) -> None:
    assert NSYS[option].values == values


def test_lists_of_nsys() -> None:
    assert {"cuda", "nvtx", "osrt", "gds", "none"} <= set(NSYS["--trace"].values or ())
    assert NSYS["--trace"].many
    assert {"graph", "node", "graph:host-only"} <= set(NSYS["--cuda-graph-trace"].values or ())


def test_tables_whose_cells_wrap() -> None:
    assert parse_listing(SETS) == ("basic", "detailed", "full", "nvlink", "pmsampling", "roofline")
    names = parse_listing(SECTIONS)
    assert len(names) == 24
    assert {"SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"} <= set(names)
    assert parse_listing("==ERROR== no sections found\n") == ()


@given(st.text())
def test_any_text_can_be_read(anything: str) -> None:
    parse_listing(anything)
    parse_nsys_help(anything)
    parse_ncu_help(anything, anything, anything)


# -- judging ----------------------------------------------------------------------------------------

REFUSED = {
    "ncu-unknown-section": ("BAD_VALUE", "NoSuchSection"),
    "ncu-unknown-set": ("BAD_VALUE", "brief"),  # ncu only warns, and its report is empty
    "ncu-unknown-option": ("UNKNOWN_OPTION", "--kernel-replay-mode"),
    "ncu-bad-replay-mode": ("BAD_VALUE", "fast"),
    "nsys-unknown-option": ("UNKNOWN_OPTION", "--no-such-option"),
    "nsys-bad-trace": ("BAD_VALUE", "nothing"),
}
PROFILING = [
    name
    for name, run in REAL.items()
    if run["argv"][0] in ("ncu", "nsys") and "-o" in run["argv"] and run["argv"][1] != "export"
]


@pytest.mark.parametrize("name", PROFILING)
def test_exactly_what_the_real_tools_refused_is_refused(name: str) -> None:
    argv = REAL[name]["argv"]
    # The program stands after the output file in every recorded command, whatever it is called.
    own = argv[: argv.index("-o") + 2]
    found = validate(own[1:], NCU) if own[0] == "ncu" else validate(own[2:], NSYS)
    assert [(d.code, d.severity) for d in found] == ([(REFUSED[name][0], "error")] if name in REFUSED else [])
    if name in REFUSED:
        assert REFUSED[name][1] in found[0].message
        assert found[0].fix


def only(argv: list[str], known: object = NCU) -> tuple[str, str, str]:
    (found,) = validate(argv, known, "ncu 2025.3.1.0")  # type: ignore[arg-type]
    return found.code, found.message, found.fix


def test_a_bad_value_is_answered_with_the_tools_list_and_the_nearest() -> None:
    code, message, fix = only(["--replay-mode", "app_range"])
    assert code == "BAD_VALUE"
    assert message == "ncu 2025.3.1.0 does not allow 'app_range' for --replay-mode."
    assert fix == "Did you mean 'app-range'? Allowed values: kernel, application, range, app-range."


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    code, message, fix = only(["--kernel-replay-mode", "application", "--nvtx"])
    assert (code, message) == ("UNKNOWN_OPTION", "ncu 2025.3.1.0 has no option '--kernel-replay-mode'.")
    assert "--replay-mode" in fix


@pytest.mark.parametrize(
    "argv",
    [
        ["--section", "SpeedOfLight", "--section", "regex:.*Roofline.*"],
        ["--nvtx", "--nvtx-include", "a/", "--nvtx-include", "b/"],
        ["--replay-mode=application", "-c", "1", "-s3"],
        ["--kernel-name", "--csv"],  # ncu takes it for the name
        ["--kernel-name", "-foo"],
        ["--cache-contr", "none"],  # both tools complete what is unambiguous
        ["--range-replay-options", "enable-greedy-sync,disable-host-save"],
        ["--section-folder", "mine", "--section", "MyOwn", "--set", "my-set"],
        ["--print-source", "cuda,sass"],
    ],
)
def test_what_ncu_takes_passes(argv: list[str]) -> None:
    assert validate(argv, NCU) == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--section", "regex:NoSuch"], "BAD_VALUE"),
        (["--section", "SpeedOfLight,Occupancy"], "BAD_VALUE"),
        (["--clock-control", "none", "--clock-control", "base"], "REPEATED_OPTION"),
        (["-k", "a", "--kernel-name", "b"], "REPEATED_OPTION"),
        (["--replay-mode", "kernel", "--replay-mode", "range"], "REPEATED_OPTION"),
        (["--nvtx=yes"], "BAD_VALUE"),
        (["--kernel-name"], "MISSING_VALUE"),
        (["--kernel-name", "-f"], "MISSING_VALUE"),  # ncu reads -f as its own
        (["python"], "STRAY_ARGUMENT"),
        (["--kernel-nam", "x"], "UNKNOWN_OPTION"),  # ambiguous
    ],
)
def test_what_ncu_refuses_is_refused(argv: list[str], code: str) -> None:
    assert only(argv)[0] == code


@pytest.mark.parametrize(
    ("value", "fine"), [("repeat", True), ("repeat:3", True), ("repeat-shutdown:2", True), ("repeat-shutdown", False)]
)
def test_numbers_inside_values(value: str, fine: bool) -> None:
    assert (validate(["--capture-range-end", value], NSYS) == []) is fine


def test_every_bad_item_of_a_list_is_named() -> None:
    found = validate(["--trace", "cuda,nvxt,osr"], NSYS)
    assert [d.fix.split("?")[0] for d in found] == ["Did you mean 'nvtx'", "Did you mean 'osrt'"]


def test_a_tool_without_readable_help_is_not_trusted_blindly_nor_refused() -> None:
    (found,) = validate(["--anything"], {})
    assert (found.code, found.severity) == ("UNCHECKED_OPTIONS", "warning")


@pytest.mark.slow
@given(st.lists(st.text(max_size=8) | st.sampled_from(sorted(NCU)), max_size=6))
def test_any_argv_can_be_checked(argv: list[str]) -> None:
    validate(argv, NCU)
    validate(argv, NSYS)
