"""The ncu command line is exactly what was asked for, whatever the values look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.nsight.help_text import parse_ncu_help, validate
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd, ncu_arguments, without_unknown_defaults
from llm_perf_opt.regions.patterns import parse_pattern

TRANSCRIPTS = Path(__file__).parent / "transcripts"
WORK = ["python", "-m", "llm_perf_opt.runners.llm_profile_runner", "device=cuda:0"]
DEFAULTS = ["--clock-control", "none", "--cache-control", "none", "--import-sass", "no"]
KNOWN = parse_ncu_help(
    *((TRANSCRIPTS / f"ncu-2025.3.1-{name}.txt").read_text() for name in ("help", "sets", "sections"))
)


def sections(*names: str) -> list[str]:
    return [part for name in names for part in ("--section", name)]


def compiled(pattern: str) -> list[str]:
    return parse_pattern(pattern).ncu_expressions()


def includes(pattern: str) -> list[str]:
    return [part for expression in compiled(pattern) for part in ("--nvtx-include", expression)]


# -- the commands of the contract (SPEC, section 3) -------------------------------------------------

TARGET = ["--target-processes", "all"]
CONTRACT = [
    (
        {"replay_mode": "range", "sections": ["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"]},
        "LLM@*",
        [
            "--replay-mode",
            "range",
            *TARGET,
            *DEFAULTS,
            *sections("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"),
            "--nvtx",
            *includes("LLM@*"),
        ],
    ),
    (
        {"replay_mode": "app-range"},
        "prefill*",
        ["--replay-mode", "app-range", *TARGET, *DEFAULTS, "--nvtx", *includes("prefill*")],
    ),
    (
        {"replay_mode": "kernel"},
        "decode*",
        ["--replay-mode", "kernel", *TARGET, *DEFAULTS, "--nvtx", *includes("decode*")],
    ),
    (
        {"kernel_name": "my_exact_kernel_name", "kernel_name_base": "demangled"},
        "LLM@*",
        [
            *TARGET,
            "--kernel-name",
            "my_exact_kernel_name",
            "--kernel-name-base",
            "demangled",
            *DEFAULTS,
            "--nvtx",
            *includes("LLM@*"),
        ],
    ),
    (
        {
            "kernel_name": "regex:.*matmul.*",
            "kernel_name_base": "demangled",
            "sections": "SpeedOfLight,MemoryWorkloadAnalysis,Occupancy",
        },
        "decode*",
        [
            *TARGET,
            "--kernel-name",
            "regex:.*matmul.*",
            "--kernel-name-base",
            "demangled",
            *DEFAULTS,
            *sections("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy"),
            "--nvtx",
            *includes("decode*"),
        ],
    ),
]


@pytest.mark.parametrize(("settings", "pattern", "expected"), CONTRACT)
def test_the_commands_of_the_contract(settings: dict[str, object], pattern: str, expected: list[str]) -> None:
    argv = build_ncu_cmd("run/ncu/out", WORK, nvtx_expr=compiled(pattern), **settings)
    assert argv == ["ncu", *expected, "-o", "run/ncu/out", *WORK]
    assert validate(ncu_arguments("out", nvtx_expr=compiled(pattern), **settings), KNOWN) == []


def test_the_hot_kernel_command_of_the_contract() -> None:
    argv = build_ncu_cmd(
        "Y",
        WORK,
        options=NcuOptions(clock_control=None, cache_control=None, import_sass=None),
        nvtx=False,
        kernel_name_base="demangled",
        kernel_name="regex:.*gemv.*",
        launch_skip=2,
        launch_count=1,
    )
    assert argv == (
        [
            "ncu",
            "--target-processes",
            "all",
            "--kernel-name",
            "regex:.*gemv.*",
            "--kernel-name-base",
            "demangled",
            "--launch-skip",
            "2",
            "--launch-count",
            "1",
            "-o",
            "Y",
            *WORK,
        ]
    )


def test_what_the_real_ncu_was_called_with_can_be_built() -> None:
    real = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text())["ncu-ok-app-range"]["argv"]
    built = build_ncu_cmd(
        "out",
        ["python3", "small.py"],
        nvtx_expr="prefill/",
        replay_mode="app-range",
        metrics=["dram__bytes_read.sum", "sm__cycles_active.avg", "lts__t_bytes.sum"],
        target_processes=None,
        cache_control=None,
    )
    assert sorted(built) == sorted(real)
    assert built[-4:] == real[-4:]


# -- values -----------------------------------------------------------------------------------------

hostile = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["-f", "--csv", "a b", "'", '"', "$(id)", "`id`", "a\nb", "*", "-regex:^x", "void f<int, float>(T1)", ";", "\\"]
)
VALUED = [
    *("set", "replay_mode", "target_processes", "nvtx_push_pop_scope", "range_filter", "kernel_name"),
    *("kernel_name_base", "kernel_id", "filter_mode", "graph_profiling", "app_replay_match", "app_replay_mode"),
    *("clock_control", "cache_control", "import_sass"),
]
counts = st.integers(0, 10**6)
LISTS = st.lists(hostile, max_size=3)


def pairs(argv: Sequence[str], switches: set[str]) -> list[tuple[str, str]]:
    """Flag and value, read off by position."""
    found, i = [], 0
    while i < len(argv):
        step = 1 if argv[i] in switches else 2
        found.append((argv[i], argv[i + 1] if step == 2 else ""))
        i += step
    return found


@given(
    values=st.dictionaries(st.sampled_from(VALUED), hostile),
    numbers=st.dictionaries(st.sampled_from(["launch_skip", "launch_count"]), counts),
    lists=st.fixed_dictionaries(dict.fromkeys(("sections", "metrics", "nvtx_include", "nvtx_exclude"), LISTS)),
    overwrite=st.booleans(),
    out=hostile,
    program=hostile.filter(lambda text: not text.startswith("-")),
    arguments=st.lists(st.text(), max_size=4),
)
def test_every_value_is_an_element_of_its_own_after_its_flag(
    values: dict[str, str],
    numbers: dict[str, int],
    lists: dict[str, list[str]],
    overwrite: bool,
    out: str,
    program: str,
    arguments: list[str],
) -> None:
    work = [program, *arguments]
    argv = build_ncu_cmd(out, work, force_overwrite=overwrite, **values, **numbers, **lists)
    assert argv[0] == "ncu"
    assert argv[-len(work) :] == work
    own = argv[1 : -len(work)]

    expected = {"target_processes": "all", "clock_control": "none", "cache_control": "none", "import_sass": "no"}
    expected |= {"kernel_name_base": "demangled"} if "kernel_name" in values else {}
    expected |= values | {name: str(number) for name, number in numbers.items()}
    wanted = [("--" + name.replace("_", "-"), value) for name, value in expected.items()]
    wanted += [("--section", value) for value in lists["sections"]]
    wanted += [("--nvtx-include", value) for value in lists["nvtx_include"]]
    wanted += [("--nvtx-exclude", value) for value in lists["nvtx_exclude"]]
    wanted += [("--metrics", ",".join(lists["metrics"]))] if lists["metrics"] else []
    wanted += [("--nvtx", ""), ("-o", out)] + ([("--force-overwrite", "")] if overwrite else [])
    assert sorted(pairs(own, {"--nvtx", "--force-overwrite"})) == sorted(wanted)


@pytest.mark.parametrize("expression", ["A,B", "regex:^a{1,2}$/", "LLM@x\\,y/"])
def test_a_comma_in_an_nvtx_expression_is_ncus(expression: str) -> None:
    argv = build_ncu_cmd("out", WORK, nvtx_expr=expression, nvtx_exclude=expression)
    assert argv.count(expression) == 2


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("layer1", "layer1/"),
        ("LLM@prefill", "LLM@prefill/"),
        ("outer/inner", "outer/inner/"),
        ("regex:^layer[0-9]$", "regex:^layer[0-9]$/"),
        ("a/*/b/", "a/*/b/"),
        ("Range A]", "Range A]"),
        ("ncu:start_end", "start_end"),
        ("@fc*", "regex:^fc.*$/"),
    ],
)
def test_a_name_selects_the_push_pop_range_of_that_name(written: str, given: str) -> None:
    argv = build_ncu_cmd("out", WORK, nvtx_expr=written)
    assert argv[argv.index("--nvtx-include") + 1] == given
    assert argv.count("--nvtx-include") == 1


def test_a_start_end_range_of_the_plan_stays_one() -> None:
    argv = build_ncu_cmd("out", WORK, nvtx_include=["LLM@se"])
    assert argv[argv.index("--nvtx-include") + 1] == "LLM@se"


def test_a_kernel_name_is_the_full_one_unless_told_otherwise() -> None:
    def base(**settings: str) -> str | None:
        argv = build_ncu_cmd("out", WORK, **settings)
        return argv[argv.index("--kernel-name-base") + 1] if "--kernel-name-base" in argv else None

    assert base() is None
    assert base(kernel_name="regex:gemm") == "demangled"
    assert base(kernel_name="gemm", kernel_name_base="function") == "function"
    assert NcuOptions(kernel_name="gemm").kernel_name_base == "demangled"


def test_lists_and_comma_strings_mean_the_same() -> None:
    assert NcuOptions(sections="A, B,", metrics="a,b") == NcuOptions(sections=["A", "B"], metrics=("a", "b"))
    assert NcuOptions(extra_args="--kill,1") == NcuOptions(extra_args=["--kill", "1"])


def test_kernel_names_keep_their_commas() -> None:
    name = "void f<int, float>(T1, T2)"
    assert name in build_ncu_cmd("out", WORK, kernel_name=name)


def test_several_expressions_repeat_the_flag_and_stand_for_the_configured_patterns() -> None:
    options = NcuOptions(nvtx_include="prefill*")
    argv = build_ncu_cmd("out", WORK, nvtx_expr=["a/", "b/"], options=options)
    assert argv[argv.index("--nvtx-include") :][:4] == ["--nvtx-include", "a/", "--nvtx-include", "b/"]
    assert "prefill*" not in argv
    assert "--nvtx-include" not in build_ncu_cmd("out", WORK, nvtx_expr=[], options=options)


def test_nvtx_can_be_switched_off_unless_a_filter_needs_it() -> None:
    assert "--nvtx" in build_ncu_cmd("out", WORK)
    assert "--nvtx" not in build_ncu_cmd("out", WORK, nvtx=False)
    assert "--nvtx" in build_ncu_cmd("out", WORK, nvtx=False, nvtx_expr="a/")
    assert "--nvtx" in build_ncu_cmd("out", WORK, nvtx=False, range_filter="::2")


@pytest.mark.parametrize(("written", "meant"), [(False, "no"), (True, "yes"), ("off", "off")])
def test_yaml_reads_no_as_a_bool_and_ncu_gets_the_word(written: object, meant: str) -> None:
    argv = build_ncu_cmd("out", WORK, import_sass=written)
    assert argv[argv.index("--import-sass") + 1] == meant


@pytest.mark.parametrize("nothing", ["", None])
def test_an_empty_filter_is_no_filter(nothing: str | None) -> None:
    argv = build_ncu_cmd("out", WORK, kernel_name=nothing, launch_count=nothing, sections=nothing, nvtx_expr=nothing)
    assert not {"--kernel-name", "--launch-count", "--section", "--nvtx-include"} & set(argv)


def test_extra_arguments_stand_before_the_program() -> None:
    argv = build_ncu_cmd("out", WORK, ncu=Path("/opt/ncu"), extra_args=["--profile-from-start", "off"])
    assert argv[0] == "/opt/ncu"
    assert argv[-len(WORK) - 2 :] == ["--profile-from-start", "off", *WORK]


def test_defaults_are_those_regions_need() -> None:
    given = {a.name: a.default for a in attrs.fields(NcuOptions) if a.default not in (None, (), False)}
    own = {"target_processes": "all", "clock_control": "none", "cache_control": "none", "import_sass": "no"}
    assert given == {**own, "nvtx": True}


# -- mistakes ---------------------------------------------------------------------------------------


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no setting 'replay_mod'.* 'replay_mode'"):
        build_ncu_cmd("out", WORK, replay_mod="kernel")


@pytest.mark.parametrize("work", [[], [""], ["-x", "python"], "python script.py"])
def test_what_is_no_program_is_refused(work: list[str] | str) -> None:
    with pytest.raises(UserError) as error:
        build_ncu_cmd("out", work)
    assert error.value.code == ExitCode.BAD_INPUT
    assert error.value.fix


@pytest.mark.parametrize(
    "settings", [{"launch_count": "few"}, {"launch_skip": -1}, {"launch_count": True}, {"force_overwrite": "perhaps"}]
)
def test_a_value_of_the_wrong_kind_names_its_setting(settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        build_ncu_cmd("out", WORK, **settings)


def test_an_older_ncu_is_not_given_defaults_it_does_not_know() -> None:
    older = {name: option for name, option in KNOWN.items() if name != "--import-sass"}
    assert validate(ncu_arguments("out"), older)[0].code == "UNKNOWN_OPTION"
    assert validate(ncu_arguments("out", options=without_unknown_defaults(NcuOptions(), older)), older) == []
    asked = without_unknown_defaults(NcuOptions(import_sass="yes"), older)
    assert "--import-sass" in validate(ncu_arguments("out", options=asked), older)[0].message
    assert without_unknown_defaults(NcuOptions(), KNOWN) == NcuOptions()
