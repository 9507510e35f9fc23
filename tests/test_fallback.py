"""Range replay that cannot work ends in another mode's data; what cannot be measured is named."""

from __future__ import annotations

import pytest

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.messages import GROUPS, RULES, STATES
from llm_perf_opt.nsight.ncu.replay_modes import fell_back, left_out, next_mode, split_metrics
from llm_perf_opt.nsight.outcome import Finished, Outcome, evaluate

RANGE_FAILS = (
    "==ERROR== An error was reported by the driver:\n==ERROR== Unsupported API during capture (cuKernelSetAttribute)\n"
    "==ERROR== Skipping invalid capture range (RecordStatusUnsupportedApi).\n==PROF== Trying to shutdown target application\n"
    "==ERROR== The application returned an error code (9)."
)


def run(
    output: str, exit_code: int, files: dict[str, int] | None = None, mode: str = "range", **flags: bool
) -> Outcome:
    argv = ["ncu", "--replay-mode", mode, "-o", "out", "python3", "x.py"]
    return evaluate(
        Finished(
            tool="ncu", argv=argv, exit_code=exit_code, output=output, files=files or {}, replay_mode=mode, **flags
        )
    )


def failed(code: str, severity: str = "error") -> Outcome:
    return Outcome("nothing", [Diagnosis(code, severity, "m", "f")], ExitCode.NOTHING_CAPTURED)


@pytest.mark.parametrize(
    ("mode", "then"),
    [("range", "app-range"), ("app-range", "kernel"), ("application", "kernel"), ("kernel", None), ("?", None)],
)
def test_the_order_of_modes(mode: str, then: str | None) -> None:
    assert next_mode(mode, run(RANGE_FAILS, 9, mode=mode)) == then


def test_metrics_that_no_range_mode_takes_lead_to_kernel_replay_at_once() -> None:
    assert next_mode("range", failed("SASS_IN_RANGE")) == "kernel"


def test_fallback_can_be_switched_off() -> None:
    assert next_mode("range", run(RANGE_FAILS, 9), enabled=False) is None


def test_data_needs_no_other_mode() -> None:
    assert next_mode("range", run("==PROF== Report: /r/out.ncu-rep", 0, {"out.ncu-rep": 60_000})) is None


@pytest.mark.parametrize(
    "output",
    [
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
        "==ERROR== unrecognised option '--x'. Use --help for further details.",
        "==ERROR== 'x' does not exist or is not an executable.",
        "==PROF== Disconnected from process 1\n==ERROR== The application returned an error code (3).",
        "==WARNING== Note that specified NVTX include expressions match only start/end ranges.",
    ],
)
def test_another_mode_does_not_mend_what_is_not_the_mode_s_fault(output: str) -> None:
    assert next_mode("range", run(output, 1)) is None


def test_no_time_and_no_wish_for_another_mode() -> None:
    assert next_mode("range", run(RANGE_FAILS, -9, timed_out=True)) is None
    assert next_mode("range", run(RANGE_FAILS, -2, interrupted=True)) is None


def test_remarks_are_no_reason() -> None:
    assert next_mode("range", failed("UNKNOWN_ERROR", "warning")) is None
    assert next_mode("range", failed("NO_RANGES_PROFILED")) == "app-range"


def test_the_codes_of_groups_exist() -> None:
    assert {rule.code for rule in (*RULES, *STATES.values())} >= {code for codes in GROUPS.values() for code in codes}


SASS = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"


@pytest.mark.parametrize("mode", ["range", "app-range"])
def test_per_instruction_metrics_are_left_out_of_range_modes_and_named(mode: str) -> None:
    split = split_metrics(
        mode, [f"dram__bytes_read.sum,{SASS}", "sm__sass_inst_executed.sum", "regex:.*sass.*", "dram__bytes_read.sum"]
    )
    assert split.taken == ["dram__bytes_read.sum"]
    assert split.left_out == [SASS, "sm__sass_inst_executed.sum", "regex:.*sass.*"]
    named = left_out(mode, split.left_out)
    assert named is not None
    assert SASS in named.message
    assert mode in named.message
    assert named.fix


@pytest.mark.parametrize("mode", ["kernel", "application"])
def test_kernel_modes_take_them_all(mode: str) -> None:
    assert split_metrics(mode, [SASS]).taken == [SASS]
    assert left_out(mode, []) is None


def test_the_report_says_which_mode_gave_the_numbers_and_why() -> None:
    told = fell_back("range", "app-range", run(RANGE_FAILS, 9))
    assert told.code == "REPLAY_FELL_BACK"
    assert told.severity == "warning"
    assert "mode range" in told.message
    assert "app-range was used" in told.message
    assert "cuKernelSetAttribute" in told.message
    assert told.fix
