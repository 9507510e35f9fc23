"""Every real transcript gets the judgement a person would give it, and every message a cause and a fix."""

from __future__ import annotations

import json
import re
import string
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import examples
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.messages import RULES, STATES, Rule
from llm_perf_opt.nsight.outcome import Finished, Outcome, absent_metrics, clean, evaluate, of_rule

TRANSCRIPTS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "transcripts" / "ncu-nsys-2025.3.1-h200.json").read_text(encoding="utf-8")
)

# written by hand from the transcripts: status, exit code, codes
EXPECTED: dict[str, tuple[str, int, list[str]]] = {
    "ncu-ok-kernel": ("captured", 0, []),
    "ncu-ok-passes": ("captured", 0, []),
    "ncu-ok-app-range": ("captured", 0, []),
    "ncu-ok-application": ("captured", 0, []),
    "ncu-missing-slash": ("nothing", 5, ["ONLY_START_END_RANGES"]),
    "ncu-wrong-domain": ("nothing", 5, ["ONLY_PUSH_POP_RANGES"]),
    "ncu-no-such-kernel": ("nothing", 5, ["NO_SUCH_KERNEL"]),
    "ncu-range-small": ("nothing", 5, ["UNSUPPORTED_API_IN_RANGE"]),
    "ncu-range-transformer": ("nothing", 5, ["UNSUPPORTED_API_IN_RANGE"]),
    "ncu-sass-in-range": ("nothing", 2, ["SASS_IN_RANGE"]),
    "ncu-app-error": ("partial", 4, ["WORKLOAD_FAILED"]),
    "ncu-app-raise": ("partial", 4, ["WORKLOAD_FAILED"]),
    "ncu-app-segv": ("partial", 4, ["WORKLOAD_CRASHED"]),
    "ncu-app-oom": ("partial", 4, ["GPU_OUT_OF_MEMORY"]),
    "ncu-app-not-found": ("nothing", 2, ["PROGRAM_NOT_FOUND"]),
    "ncu-app-without-cuda": ("nothing", 5, ["PROGRAM_WITHOUT_CUDA"]),
    "ncu-unknown-metric": ("captured", 0, []),  # silent: only the report's content tells, see absent_metrics
    "ncu-unknown-section": ("nothing", 2, ["UNKNOWN_SECTION"]),
    "ncu-unknown-set": ("nothing", 2, ["NO_METRICS"]),
    "ncu-unknown-option": ("nothing", 2, ["UNKNOWN_OPTION"]),
    "ncu-bad-replay-mode": ("nothing", 2, ["BAD_OPTION_VALUE"]),
    "ncu-file-exists": ("nothing", 2, ["FILE_EXISTS"]),
    "ncu-no-folder": ("nothing", 2, ["OUTPUT_NOT_WRITABLE"]),
    "ncu-disk-full": ("nothing", 5, ["DISK_FULL", "METRICS_DROPPED"]),
    "ncu-torch-profiler-inside": ("captured", 0, ["ANOTHER_PROFILER"]),
    "ncu-as-nobody": ("nothing", 5, ["REPORT_ELSEWHERE"]),  # the folder of that user was not listed
    "nsys-ok": ("captured", 0, []),
    "nsys-ok-no-libdw": ("nothing", 3, ["IMPORTER_MISSING"]),
    "nsys-capture-range-never": ("nothing", 5, ["CAPTURE_RANGE_NEVER_OPENED"]),
    "nsys-nvtx-capture-never": ("nothing", 5, ["CAPTURE_RANGE_NEVER_OPENED"]),
    "nsys-capture-range-end-kills": ("captured", 0, ["CAPTURE_RANGE_END_KILLED"]),
    "nsys-capture-range-end-stop": ("captured", 0, []),
    "nsys-app-error": ("partial", 4, ["WORKLOAD_FAILED"]),
    "nsys-app-segv": ("partial", 4, ["WORKLOAD_CRASHED"]),
    "nsys-app-not-found": ("nothing", 2, ["PROGRAM_NOT_FOUND"]),
    "nsys-app-without-cuda": ("captured", 0, []),  # a report without kernels: the reader says so
    "nsys-unknown-option": ("nothing", 2, ["UNKNOWN_OPTION"]),
    "nsys-bad-trace": ("nothing", 2, ["BAD_OPTION_VALUE"]),
    "nsys-file-exists": ("nothing", 2, ["FILE_EXISTS", "REPORT_ELSEWHERE"]),
    "nsys-no-folder": ("nothing", 2, ["OUTPUT_NOT_WRITABLE", "REPORT_ELSEWHERE"]),
    "nsys-disk-full": ("nothing", 5, ["DISK_FULL", "REPORT_ELSEWHERE"]),
    "nsys-export-damaged": ("nothing", 2, ["EXPORT_FAILED"]),
    "nsys-status": ("captured", 0, []),
    "nsys-version": ("captured", 0, []),
    "ncu-version": ("captured", 0, []),
    "ncu-sigint": ("partial", 130, ["INTERRUPTED"]),
    "ncu-sigterm": ("partial", 130, ["INTERRUPTED"]),
    "ncu-sigkill": ("partial", 5, ["PROFILER_KILLED"]),
    "ncu-group-sigint": ("partial", 130, ["INTERRUPTED"]),
    "nsys-sigint": ("partial", 130, ["INTERRUPTED"]),
    "nsys-sigterm": ("partial", 130, ["INTERRUPTED"]),
    "nsys-sigkill": ("nothing", 5, ["PROFILER_KILLED"]),
}
# the supervisor sent the signal itself; the other signal cases are told by the exit code alone
SENT_BY_US = {"ncu-sigint", "ncu-sigterm"}
SAID = re.compile(r'The (?:profiler|program|log) said(?: \(and \d+ more such lines\))?: "(.*)"$')


def transcript(name: str, **changes: Any) -> Finished:
    """A transcript as the supervisor would hand it over: with the files of this run, not the ones that lay there."""
    it = TRANSCRIPTS[name]
    tool: Literal["nsys", "ncu"] = "ncu" if name.startswith("ncu") else "nsys"
    asked = {"ncu-file-exists": "exists.ncu-rep", "nsys-file-exists": "exists.nsys-rep"}.get(name)
    argv = it["argv"]
    values: dict[str, Any] = {
        "tool": tool,
        "argv": argv,
        "exit_code": it["exit"] if isinstance(it["exit"], int) else None,
        "output": f"{it['stdout']}\n{it['stderr']}",
        "files": {file: size for file, size in it["files"] if not file.startswith("exists.") or file == asked},
        "interrupted": name in SENT_BY_US,
        "replay_mode": argv[argv.index("--replay-mode") + 1] if "--replay-mode" in argv else "kernel",
    }
    return Finished(**{**values, **changes})


def ncu(output: str, exit_code: int | None = 0, report: int | None = None, **changes: Any) -> Outcome:
    files = {} if report is None else {"run.ncu-rep": report}
    argv = ["ncu", "-o", "run", "python3", "x.py"]
    return evaluate(
        Finished(**{"tool": "ncu", "argv": argv, "exit_code": exit_code, "output": output, "files": files, **changes})
    )


def nsys(output: str, exit_code: int | None = 0, report: int | None = None, **changes: Any) -> Outcome:
    files = {} if report is None else {"run.nsys-rep": report}
    argv = ["nsys", "profile", "-o", "run", "python3", "x.py"]
    return evaluate(
        Finished(**{"tool": "nsys", "argv": argv, "exit_code": exit_code, "output": output, "files": files, **changes})
    )


def test_every_transcript_has_a_judgement() -> None:
    assert set(EXPECTED) == set(TRANSCRIPTS)
    assert len(TRANSCRIPTS) >= 52


@pytest.mark.parametrize("name", EXPECTED)
def test_the_judgement_of_a_transcript(name: str) -> None:
    outcome = evaluate(transcript(name))
    assert (outcome.status, int(outcome.exit_code), outcome.codes) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_program_s_lines_may_come_apart_from_the_profiler_s(name: str) -> None:
    if name.startswith("nsys"):  # nsys writes its own errors to stderr
        return
    it = TRANSCRIPTS[name]
    outcome = evaluate(transcript(name, output=it["stdout"], workload_output=it["stderr"]))
    assert (outcome.status, int(outcome.exit_code), outcome.codes) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_diagnosis_quotes_the_log_and_says_what_to_do(name: str) -> None:
    it = TRANSCRIPTS[name]
    log = " ".join(f"{it['stdout']}\n{it['stderr']}".split())
    for diagnosis in evaluate(transcript(name)).diagnoses:
        assert diagnosis.fix
        assert diagnosis.severity in ("info", "warning", "error")
        assert diagnosis.message.isprintable()
        assert diagnosis.fix.isprintable()
        assert "{" not in diagnosis.message + diagnosis.fix
        assert "  " not in diagnosis.message  # a value that was not filled in
        said = SAID.search(diagnosis.message)
        for line in said[1].split(" · ") if said else []:
            assert line.removesuffix("…") in log


@pytest.mark.parametrize(
    "name",
    [n for n, (_, _, codes) in EXPECTED.items() if (codes and codes[0] not in STATES) or "RANGE_END" in str(codes)],
)
def test_a_message_of_the_profiler_is_quoted(name: str) -> None:
    assert SAID.search(evaluate(transcript(name)).diagnoses[0].message)


def test_no_result_without_a_word() -> None:
    for name in EXPECTED:
        outcome = evaluate(transcript(name))
        assert outcome.status != "nothing" or outcome.diagnoses
        assert outcome.exit_code == ExitCode.DONE or outcome.diagnoses
        assert outcome.status != "nothing" or outcome.exit_code != ExitCode.DONE


def test_details_a_reader_needs_are_in_the_sentences() -> None:
    def message(name: str) -> str:
        return evaluate(transcript(name)).diagnoses[0].message

    assert "cuInit" in message("ncu-range-small")
    assert "cuKernelSetAttribute" in message("ncu-range-transformer")
    assert "mode app-range" in message("ncu-sass-in-range")
    assert "the model is broken" in message("ncu-app-raise")
    assert "SIGSEGV" in message("ncu-app-segv")
    assert "SIGSEGV" in message("nsys-app-segv")
    assert "splitKreduce_kernel" in message("ncu-no-such-kernel")
    assert "out.qdstrm" in message("nsys-ok-no-libdw")
    assert "'cuda-hw'" in message("nsys-bad-trace")
    assert "17 more" in message("ncu-disk-full")
    assert evaluate(transcript("nsys-file-exists")).elsewhere == ["/tmp/nsys-report-0000.nsys-rep"]


def test_exit_0_and_nothing_is_never_a_success() -> None:
    for outcome in (ncu(""), nsys(""), ncu("", report=0), nsys("", report=12)):
        assert outcome.status == "nothing"
        assert outcome.exit_code == ExitCode.NOTHING_CAPTURED
    assert ncu("").codes == ["NOTHING_CAPTURED"]
    assert ncu("", report=12).codes == ["REPORT_EMPTY"]


def test_an_older_report_is_not_this_run_s() -> None:
    old = ncu("==ERROR== File run.ncu-rep already exists. Use '-f' for overwriting the file.", 1, report=500_000)
    assert (old.status, old.exit_code) == ("nothing", ExitCode.BAD_INPUT)


def test_a_full_disk_keeps_what_was_saved_before() -> None:
    line = '==PROF== Profiling "k" - {}: 0%....50%....100% - 1 pass\n'
    log = line.format(0) + line.format(1) + "==ERROR== Failed to save the report to file /d/run.ncu-rep\n"
    assert ncu(log, 1, report=70_000).status == "partial"
    assert ncu(log, 1, report=70_000).codes == ["DISK_FULL"]


# Wording from manuals and other people's logs (sources in messages.toml), each with its usual company
ELSEWHERE_SEEN = {
    "COUNTER_PERMISSION": (
        "==PROF== Connected to process 7 (/usr/bin/python3)\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
        "==PROF== Disconnected from process 7\n==WARNING== No kernels were profiled.",
        1,
        3,
    ),
    "DRIVER_RESOURCE_BUSY": (
        "==ERROR== An error was reported by the driver:\n"
        "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling data. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more details.\n"
        '==ERROR== Failed to profile "flash_fwd_kernel" in process 7\n==PROF== Trying to shutdown target application\n'
        "==ERROR== The application returned an error code (9).\n==ERROR== An error occurred while trying to profile.\n==WARNING== No kernels were profiled.",
        9,
        3,
    ),
    "LOCK_FILE": (
        "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has write permissions on this file. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for more details.\n"
        '==ERROR== Failed to profile "vectorized_elementwise_kernel" in process 7\n==PROF== Trying to shutdown target application\n'
        "==ERROR== The application returned an error code (9).\n==ERROR== An error occurred while trying to profile.\n==WARNING== No kernels were profiled.",
        9,
        3,
    ),
    "DRIVER_MISMATCH": (
        "==ERROR== An error was reported by the counter measurement library:\n"
        "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. Check that a compatible driver library is loaded.\n"
        "==PROF== Trying to shutdown target application\n==ERROR== The application returned an error code (9).",
        9,
        3,
    ),
    "CLOCKS_NOT_LOCKABLE": (
        "==ERROR== Cannot lock GPU clock frequencies on MIG! Try locking the clocks externally",
        9,
        3,
    ),
    "UNKNOWN_METRIC": (r"==ERROR== Failed to find metric regex:^flop_count_sp\.(sum|min)$", 1, 2),
    "CONFIG_FILE": (
        "==ERROR== Failed to parse options: filesystem error: status: Permission denied [config.ncu-cfg]",
        1,
        2,
    ),
    "NO_RANGES_PROFILED": ("==PROF== Connected to process 7 (x)\n==WARNING== No ranges were profiled.", 0, 5),
    "NO_KERNELS_PROFILED": ("==PROF== Connected to process 7 (x)\n==WARNING== No kernels were profiled.", 0, 5),
    "RANGE_INVALID": ("==ERROR== Skipping invalid capture range (RecordStatusOther).", 9, 5),
    "HOST_OUT_OF_MEMORY": ("==ERROR== Unhandled C++ exception: bad allocation", 1, 4),
    "GPU_MISSING": (
        "RuntimeError: No CUDA GPUs are available\n==ERROR== The application returned an error code (1).",
        1,
        3,
    ),
    "KERNEL_NOT_PROFILED": ('==ERROR== UnknownError\n==ERROR== Failed to profile "scale_f32" in process 7', 1, 5),
    "UNKNOWN_ERROR": ("==ERROR== The flux capacitor is empty.", 1, 5),
    "KILLED": ("==ERROR== The application returned an error code (9).", 9, 4),
    "WORKLOAD_FAILED": (
        "==PROF== Disconnected from process 7\n==ERROR== The application returned an error code (9).",
        9,
        4,
    ),
}


@pytest.mark.parametrize("code", ELSEWHERE_SEEN)
def test_messages_known_from_elsewhere(code: str) -> None:
    output, exit_code, expected = ELSEWHERE_SEEN[code]
    outcome = ncu(output, exit_code)
    assert (outcome.status, int(outcome.exit_code), outcome.codes) == ("nothing", expected, [code])


def test_an_error_line_beside_a_complete_report_is_a_warning() -> None:
    outcome = ncu(
        "==ERROR== Cuda driver is not compatible with Nsight Compute.\n==PROF== Report: /r/run.ncu-rep", 0, 50_000
    )
    assert (outcome.status, outcome.exit_code, outcome.diagnoses[0].severity) == ("captured", ExitCode.DONE, "warning")


@pytest.mark.parametrize("code", [0, 1, 3, 130, -2])
def test_a_program_that_was_ended_on_purpose_has_not_failed(code: int) -> None:
    """It may hand out any exit code: all planned samples are in."""
    told = f"==ERROR== The application returned an error code ({code})." if code else ""
    outcome = evaluate(
        Finished(
            tool="ncu",
            argv=["ncu", "-o", "run", "python", "model.py"],
            exit_code=code,
            output=f"{told}\n==PROF== Report: /r/run.ncu-rep",
            files={"run.ncu-rep": 50_000},
            ended_on_purpose="decode_step 9",
        )
    )
    assert (outcome.status, outcome.exit_code, outcome.codes) == ("captured", ExitCode.DONE, ["ENDED_ON_PURPOSE"])
    assert "before decode_step 9" in outcome.diagnoses[0].message


def test_an_end_on_purpose_does_not_make_nothing_into_something() -> None:
    ended = Finished(
        tool="ncu",
        argv=["ncu", "-o", "run", "python", "model.py"],
        exit_code=0,
        output="==PROF== Connected to process 7 (python)\n==WARNING== No kernels were profiled.",
        ended_on_purpose="decode_step 9",
    )
    assert (evaluate(ended).status, evaluate(ended).exit_code) == ("nothing", ExitCode.NOTHING_CAPTURED)
    assert "NO_KERNELS_PROFILED" in evaluate(ended).codes


def test_memory_a_program_survives_is_no_failure() -> None:
    assert ncu("torch.OutOfMemoryError: CUDA out of memory. Trying a smaller batch", 0, 50_000).codes == []


def test_older_importers_and_other_import_failures() -> None:
    old = nsys(
        "Importer error status: The importer binary and its dependencies were not found.", files={"run.qdstrm": 9_000}
    )
    assert (old.codes, old.exit_code) == (["IMPORTER_MISSING"], ExitCode.MISSING_TOOL)
    other = nsys(
        "Importer error status: Importation failed.\nImport Failed with unexpected exception: Wrong event order",
        files={"run.qdstrm": 9_000},
    )
    assert (other.codes, other.exit_code) == (["IMPORT_FAILED"], ExitCode.NOTHING_CAPTURED)
    assert "run.qdstrm" in other.diagnoses[0].message


def test_a_program_that_dies_before_its_capture_range_is_the_cause() -> None:
    run = Finished(
        tool="nsys",
        argv=["nsys", "profile", "-c", "cudaProfilerApi", "-o", "run", "python3", "x.py"],
        exit_code=1,
        output="Generated:\n\tNo reports were generated",
        workload_output="Traceback (most recent call last):\n  File x\nValueError: bad shape",
    )
    outcome = evaluate(run)
    assert outcome.codes == ["WORKLOAD_FAILED", "CAPTURE_RANGE_NEVER_OPENED"]
    assert outcome.exit_code == ExitCode.WORKLOAD_FAILED
    assert "ValueError: bad shape" in outcome.diagnoses[0].message


@pytest.mark.parametrize(
    ("exit_code", "code", "expected"),
    [
        (137, "KILLED", 4),
        (-9, "PROFILER_KILLED", 5),
        (-11, "PROFILER_CRASHED", 5),
        (134, "WORKLOAD_CRASHED", 4),
        (1, "WORKLOAD_FAILED", 4),
    ],
)
def test_exit_codes_of_nsys_without_a_message(exit_code: int, code: str, expected: int) -> None:
    for report, status in ((None, "nothing"), (60_000, "partial")):
        outcome = nsys("", exit_code, report)
        assert (outcome.status, outcome.codes, int(outcome.exit_code)) == (status, [code], expected)


def test_an_unexplained_exit_code_of_ncu() -> None:
    assert ncu("", 7, 60_000).codes == ["UNKNOWN_EXIT"]


def test_timed_out_keeps_what_is_there() -> None:
    lines = "==PROF== Trying to shutdown target application\n==ERROR== The application returned an error code (15)."
    for report, status in ((None, "nothing"), (60_000, "partial")):
        outcome = ncu(lines, -9, report, timed_out=True)
        assert (outcome.status, outcome.codes, outcome.exit_code) == (status, ["TIMED_OUT"], ExitCode.TIMED_OUT)


def test_the_program_s_arguments_are_not_the_profiler_s() -> None:
    run = Finished(
        tool="nsys",
        argv=["nsys", "profile", "-o", "run", "python3", "-c", "nvtx", "--version"],
        exit_code=0,
        output="Generated:\n\tNo reports were generated",
    )
    assert evaluate(run).codes == ["NO_REPORT"]


def test_metrics_that_are_not_in_the_report_are_named() -> None:
    asked = [
        "gpu__time_duration.sum,no__such_metric.sum",
        "sm__cycles_active",
        "regex:dram.*",
        "group:memory",
        "other__x",
    ]
    found = ["gpu__time_duration.sum", "sm__cycles_active.avg"]
    diagnosis = absent_metrics(asked, found)
    assert diagnosis is not None
    assert "no__such_metric.sum, other__x." in diagnosis.message
    assert absent_metrics(["gpu__time_duration.sum"], found) is None


def fields(rule: Rule) -> set[str]:
    return {name for text in (rule.cause, rule.fix) for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("rule", [*RULES, *STATES.values()], ids=lambda rule: rule.code)
def test_every_rule_is_complete(rule: Rule) -> None:
    groups = set(rule.pattern.groupindex) if rule.pattern else set()
    assert fields(rule) <= groups | {"exit", "signal", "leftover", "elsewhere", "mode", "names", "where"}
    assert re.fullmatch(r"[A-Z][A-Z_]+", rule.code)
    assert rule.fix
    assert rule.severity in ("info", "warning", "error")
    assert of_rule(rule).message
    known = {other.code for other in (*RULES, *STATES.values())}
    assert rule.hides <= known


def test_evidence_is_one_short_printable_line() -> None:
    assert clean("\x1b[31m==ERROR==\x1b[0m a\tb\x00\u202ec\n") == "==ERROR== a b c"
    assert len(clean("x" * 5000)) == 240


@examples(150)
@given(
    st.text(max_size=300),
    st.one_of(st.none(), st.integers(-70, 300)),
    st.sampled_from(["ncu", "nsys"]),
    st.dictionaries(st.sampled_from(["run.ncu-rep", "run.nsys-rep", "run.qdstrm"]), st.integers(0, 10_000)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([*(rule.pattern.pattern for rule in RULES if rule.pattern), ""]),
)
def test_any_log_gets_a_judgement(
    text: str, exit_code: int | None, tool: Any, files: dict[str, int], timed_out: bool, interrupted: bool, line: str
) -> None:
    run = Finished(
        tool=tool, argv=[tool, "-o", "run", "x"], exit_code=exit_code, output=f"{text}\n{line}\n{text}",
        workload_output=text, files=files, timed_out=timed_out, interrupted=interrupted,
    )  # fmt: skip
    outcome = evaluate(run)
    assert outcome.status != "nothing" or (outcome.diagnoses and outcome.exit_code != ExitCode.DONE)
    assert all(d.message.isprintable() and d.fix for d in outcome.diagnoses)
    assert outcome == evaluate(run)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.origin], ids=lambda rule: rule.code)
def test_a_rule_without_an_origin_was_seen_in_a_transcript(rule: Rule) -> None:
    assert rule.pattern is not None
    logs = [f"{it['stdout']}\n{it['stderr']}" for n, it in TRANSCRIPTS.items() if n.startswith(rule.tool)]
    assert any(rule.pattern.search(line) for log in logs for line in log.splitlines())


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.origin], ids=lambda rule: rule.code)
def test_a_rule_from_elsewhere_matches_its_example(rule: Rule) -> None:
    assert rule.find([rule.example])


def test_a_state_has_no_example_and_each_code_of_its_own() -> None:
    assert not any(rule.example or rule.origin for rule in STATES.values())
    text = (files("llm_perf_opt.nsight") / "messages.toml").read_text(encoding="utf-8")
    assert text.count("\n[[state]]\n") == len(STATES)


def test_every_diagnosis_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert not [rule.code for rule in (*RULES, *STATES.values()) if f"| `{rule.code}` |" not in page]


def reached() -> list[Outcome]:
    """Runs of every sort: the transcripts, wording from elsewhere, and the examples of the table."""
    found = [evaluate(transcript(name)) for name in EXPECTED]
    found += [ncu(output, exit_code) for output, exit_code, _ in ELSEWHERE_SEEN.values()]
    found += [(nsys if rule.tool == "nsys" else ncu)(rule.example, 1) for rule in RULES if rule.origin]
    found.append(nsys("Importer error status: Importation failed.", files={"run.qdstrm": 9_000}))
    found.append(nsys("Generated:\n\tNo reports were generated"))
    argv = ["ncu", "--set", "nope", "--metrics", "x", "-o", "run", "python3", "x.py"]
    found.append(ncu("==WARNING== No metrics to collect found in sections", 0, 50_000, argv=argv))
    return found


def test_no_rule_stands_behind_one_that_always_hides_it() -> None:
    """Each rule is the one that speaks for some run: found by its sentence, as several may share a code."""
    messages = [diagnosis.message for outcome in reached() for diagnosis in outcome.diagnoses]
    for rule in RULES:
        sentence = "".join(
            re.escape(text) + (".*" if name else "") for text, name, _, _ in string.Formatter().parse(rule.cause)
        )
        assert any(re.match(sentence, message) for message in messages), (rule.code, rule.cause)


def test_long_logs_are_read_in_one_go() -> None:
    log = "".join(f'==PROF== Profiling "k{i}" - {i}: 0%....50%....100% - 1 pass\nstep {i}\n' for i in range(20_000))
    assert ncu(log + "==PROF== Report: /r/run.ncu-rep\n", 0, 60_000).status == "captured"
