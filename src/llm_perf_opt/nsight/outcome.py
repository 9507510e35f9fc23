"""Turns what a profiler run left behind into a verdict.

An exit code of 0 proves nothing: ncu exits 0 when no kernel matched, nsys when its capture range never opened
or its report went to another folder. So the file and its size are looked at first, then the messages, and the
exit code last. Nothing here touches the disk or a process: the same input always gives the same verdict.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal

from attrs import Factory, define, evolve

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.messages import GROUPS, RULES, STATES, Rule

Tool = Literal["nsys", "ncu"]
Status = Literal["captured", "partial", "nothing"]

MIN_REPORT_BYTES = 1024  # the smallest real report has 24 kB; a shorter file is one that was never finished
MAX_EVIDENCE = 240
_MAX_LINE = 4000  # what a program prints in one line is not ours to choose
_REPORT_SUFFIX = {"ncu": ".ncu-rep", "nsys": ".nsys-rep"}
_NSYS_RECORDS = ("profile", "start", "stop", "launch")  # its other commands answer a question and leave no report
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure)(?:: .*)?$")
_ELASTIC = "torch.distributed.elastic"  # torchrun's summary of its children: their own exception says more
_CRASHES = frozenset({signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV})
_STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@define(frozen=True, kw_only=True)
class Finished:
    """What is known after a profiler run has ended, or was ended."""

    tool: Tool
    argv: Sequence[str]  # the profiler's whole command line
    exit_code: int | None  # negative: killed by that signal; None: it never ended by itself
    handed_on: bool = False  # the exit code is known to be the program's own; of nsys it always is
    output: str  # the profiler's own log; the program's lines may be among it
    workload_output: str = ""
    files: Mapping[str, int] = Factory(dict)  # name to bytes: the expected report and what else this run left
    timed_out: bool = False
    interrupted: bool = False
    too_large: bool = False  # ended because the recording had reached its limit
    ended_on_purpose: str = ""  # where the program ended itself, because all it was watched for had been seen
    replay_mode: str = "kernel"


@define(frozen=True)
class Outcome:
    """The verdict: is there data, what does the reader have to know, how does the run end."""

    status: Status
    diagnoses: list[Diagnosis]
    exit_code: ExitCode
    elsewhere: list[str] = Factory(list)  # files the profiler says it wrote and that are not among `files`

    @property
    def codes(self) -> list[str]:
        """The codes of the diagnoses, most telling first."""
        return [diagnosis.code for diagnosis in self.diagnoses]


@define
class _Finding:
    """A rule that applies, with the lines that show it."""

    rule: Rule
    evidence: list[str] = Factory(list)
    more: int = 0
    values: dict[str, str] = Factory(dict)
    source: str = "profiler"


def clean(text: str, limit: int = MAX_EVIDENCE) -> str:
    """One printable line of at most `limit` characters: logs carry colours, tabs and worse."""
    text = _ANSI.sub("", text[: 4 * _MAX_LINE])
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def of_rule(
    rule: Rule, evidence: Sequence[str] = (), more: int = 0, source: str = "profiler", **values: str
) -> Diagnosis:
    """The diagnosis of a rule: its cause, the line that shows it, and the fix."""
    # One that is not known leaves a gap instead of an error.
    known = defaultdict(str, {name: clean(value) for name, value in values.items()})
    message = rule.cause.format_map(known)
    if evidence:
        said = " · ".join(clean(line) for line in evidence)
        again = f" (and {more} more such lines)" if more else ""
        message = f'{message} The {source} said{again}: "{said}"'
    return Diagnosis(rule.code, rule.severity, message, rule.fix.format_map(known))


def evaluate(run: Finished) -> Outcome:
    """What this run gave, and why not more."""
    lines = _lines(run.output)
    program = [*_lines(run.workload_output), *lines]
    words = _options(run.argv)
    options = " ".join(words)
    suffix = _expected(run, words)
    reports = {name: size for name, size in run.files.items() if suffix and name.endswith(suffix)}
    usable = suffix is None or any(size >= MIN_REPORT_BYTES for size in reports.values())
    failed = run.exit_code != 0 or not usable

    findings = list(_stopped(run, lines, usable))
    findings += _matches(run, options, lines, program, failed, complete=usable and run.exit_code == 0)
    findings = [_by_signal(finding, lines) for finding in findings]
    if run.exit_code and not any(_explains_exit(run, finding) for finding in findings):
        findings = [*_by_exit_code(run), *findings]
    for finding in findings:
        if finding.rule.code in ("WORKLOAD_FAILED", "WORKLOAD_CRASHED"):
            _add_last_words(finding, program, run.workload_output)

    no_data = any(finding.rule.no_data for finding in findings) or _nothing_saved(lines)
    elsewhere = _elsewhere(run, lines)
    if not usable or no_data:
        findings += _explain_nothing(reports, findings, elsewhere)
    left = _without_consequences(findings)
    common = {"exit": str(run.exit_code), "leftover": _leftover(run, reports), "mode": run.replay_mode}
    diagnoses = [of_rule(f.rule, f.evidence, f.more, f.source, **common | f.values) for f in left]
    status = _status(run, left, usable and not no_data)
    return Outcome(status, diagnoses, _exit_code(status, left), elsewhere if status == "nothing" else [])


def absent_metrics(asked: Iterable[str], found: Iterable[str]) -> Diagnosis | None:
    """Names the metrics ncu dropped without a word: it takes any name and collects what it knows.

    `found` are the names in the report. Patterns and groups cannot be checked by name; a name without suffix
    stands for all its suffixes.
    """
    present = set(found)
    stems = {name.partition(".")[0] for name in present}
    missing = [
        name
        for name in dict.fromkeys(part.strip() for entry in asked for part in entry.split(","))
        if name and ":" not in name and name not in present and ("." in name or name not in stems)
    ]
    return of_rule(STATES["METRICS_ABSENT"], names=", ".join(missing)) if missing else None


def _lines(text: str) -> list[str]:
    """Lines as a terminal shows them: a carriage return starts a new one."""
    return [_ANSI.sub("", line[:_MAX_LINE]) for line in re.split(r"[\r\n]+", text) if line]


def _options(argv: Sequence[str]) -> list[str]:
    """The profiler's own options, without the program: its arguments are not the profiler's."""
    options: list[str] = []
    previous_is_option = True  # what follows an option may be its value, so two plain words in a row end the options
    started = False
    for word in argv:
        name = PurePosixPath(word).name
        if not started:  # `env X=Y ncu …`, `setpriv … ncu …`: what comes before the tool is not the tool's
            started = name.startswith(("ncu", "nsys", "nv-nsight"))
            continue
        if word == "--":
            break
        is_option = word.startswith("-")
        if not is_option and not previous_is_option and options and options != ["profile"]:
            break
        options.append(word)
        previous_is_option = is_option and "=" not in word
    return options


def _expected(run: Finished, options: Sequence[str]) -> str | None:
    """The suffix of the file this call must leave, or None for one that only answers a question."""
    suffix = _REPORT_SUFFIX[run.tool]
    if not options:  # a wrapper with a name of its own: a report is what runs are for
        return suffix
    if run.tool == "nsys":
        if options[0] == "export":
            kind = re.search(r"(?:--type|-t)[ =](\w+)", " ".join(options))
            return f".{kind[1]}" if kind else ".sqlite"
        return suffix if options[0] in _NSYS_RECORDS else None
    writes = any(word.startswith(("-o", "--export")) for word in options)
    return suffix if writes else None


def _is_progress(line: str) -> bool:
    """Most lines of a long run: no need to try every rule on them."""
    return line.startswith('==PROF== Profiling "') and line.count("==") == 2


def _matches(
    run: Finished, options: str, lines: list[str], program: list[str], failed: bool, *, complete: bool
) -> Iterator[_Finding]:
    """The rules of the table that apply, in the order of the table."""
    log = [line for line in lines if not _is_progress(line)]
    everything = [line for line in program if not _is_progress(line)]
    own = set(log)
    for rule in RULES:
        if not rule.applies(run.tool, options, lines, failed=failed):
            continue
        where = log if rule.printed_by == "profiler" else everything
        hits = rule.find(where)
        if not hits:
            continue
        first, match = hits[0]
        evidence = where[first : first + 1 + rule.more_lines]
        values = {name: value or "" for name, value in match.groupdict().items()}
        source = "profiler" if rule.printed_by == "profiler" else "log" if where[first] in own else "program"
        if rule.warning_if_complete and complete:
            rule = evolve(rule, severity="warning", exit_code=ExitCode.DONE)
        yield _Finding(rule, evidence, len(hits) - 1, values, source)


def _stopped(run: Finished, lines: list[str], usable: bool) -> Iterator[_Finding]:
    """Runs that did not end by themselves."""
    if run.timed_out:
        yield _Finding(STATES["TIMED_OUT"])
        return
    if run.too_large:
        yield _Finding(STATES["RECORDING_TOO_LARGE"])
        return
    if run.ended_on_purpose and not run.interrupted:
        yield _Finding(STATES["ENDED_ON_PURPOSE"], values={"where": run.ended_on_purpose})
        return
    number = _signal_of(run.exit_code)
    ended = [lines[i] for i, _ in STATES["CAPTURE_RANGE_END_KILLED"].find(lines)][:1]
    if run.interrupted:
        by = _signal_name(number) if number in _STOPS else "on request"
        yield _Finding(STATES["INTERRUPTED"], values={"signal": by})
    elif run.tool == "nsys" and number == signal.SIGTERM and ended and usable:
        yield _Finding(STATES["CAPTURE_RANGE_END_KILLED"], ended)
    elif number in _STOPS:
        yield _Finding(STATES["INTERRUPTED"], values={"signal": _signal_name(number)})
    elif run.exit_code is None:
        yield _Finding(STATES["PROFILER_KILLED"])


def _signal_of(exit_code: int | None) -> int | None:
    """The signal behind an exit code, as a parent sees it (-9) or as a shell and nsys write it (137)."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if 128 < exit_code < 160 else None


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _by_signal(finding: _Finding, lines: list[str]) -> _Finding:
    """ncu gives the signal's number as the error code; only a program that ended by itself disconnects first."""
    if finding.rule.code != "WORKLOAD_FAILED" or any("==PROF== Disconnected from process" in line for line in lines):
        return finding
    code = finding.values.get("exit", "")
    number = int(code) if len(code) < 4 else 0
    if number == signal.SIGKILL:
        return evolve(finding, rule=STATES["KILLED"])
    if number in _CRASHES:
        return evolve(finding, rule=STATES["WORKLOAD_CRASHED"], values={"signal": _signal_name(number)})
    return finding


def _explains_exit(run: Finished, finding: _Finding) -> bool:
    """Whether a code other than 0 is this finding's doing."""
    if finding.rule.code in GROUPS["nsys_exits_0"]:
        return run.tool != "nsys"
    return bool(finding.rule.exit_code) or finding.rule.code in GROUPS["wanted_ends"]


def _by_exit_code(run: Finished) -> Iterator[_Finding]:
    """What the exit code says where no line said anything. nsys hands on the program's code without a word."""
    assert run.exit_code is not None
    number = _signal_of(run.exit_code)
    values = {"signal": _signal_name(number)}
    if run.exit_code < 0:
        yield _Finding(STATES["PROFILER_KILLED" if number == signal.SIGKILL else "PROFILER_CRASHED"], values=values)
    elif number == signal.SIGKILL:
        yield _Finding(STATES["KILLED"])
    elif number is not None:
        yield _Finding(STATES["WORKLOAD_CRASHED"], values=values)
    else:
        handed_on = run.tool == "nsys" or run.handed_on
        yield _Finding(STATES["WORKLOAD_FAILED" if handed_on else "UNKNOWN_EXIT"])


def _add_last_words(finding: _Finding, program: list[str], program_output: str) -> None:
    """Python's last exception says more than an error code; where there is none, what the program said last."""
    inside, last = False, None
    for line in program:
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and _EXCEPTION.match(line) and not line.startswith(_ELASTIC):
            last = line
    if last is None and finding.source != "program":
        last = next((line for line in reversed(_lines(program_output)) if line.strip()), None)
    if last is not None:
        finding.evidence, finding.more, finding.source = [last], 0, "program"


def _nothing_saved(lines: list[str]) -> bool:
    """Whether ncu failed to save every single result: the file then holds a torn first block and no kernel."""
    failed = sum("==ERROR== Failed to save the report" in line for line in lines)
    return 0 < sum('==PROF== Profiling "' in line for line in lines) <= failed


def _elsewhere(run: Finished, lines: list[str]) -> list[str]:
    """Files the profiler says it wrote that are not among those found."""
    here = {PurePosixPath(name).name for name, size in run.files.items() if size}
    named = []
    after_generated = False
    for line in lines:
        if line.startswith("==PROF== Report: "):
            named.append(line.removeprefix("==PROF== Report: ").strip())
        elif line.startswith("Generated:"):
            after_generated = True
        elif after_generated and line.startswith("\t/"):
            named.append(line.strip())
    return [path for path in dict.fromkeys(named) if PurePosixPath(path).name not in here]


def _leftover(run: Finished, reports: Mapping[str, int]) -> str:
    """What is left instead of a report, for the sentence that speaks of it."""
    raw = [name for name in run.files if name.endswith(".qdstrm")]
    named = [f"{name}, {run.files[name]:,} bytes" for name in raw or reports]
    return f": {'; '.join(named)}" if named else ""


def _explain_nothing(reports: Mapping[str, int], findings: list[_Finding], elsewhere: list[str]) -> Iterator[_Finding]:
    """A result is never missing without a word."""
    explained = any(finding.rule.exit_code for finding in findings)
    if elsewhere:
        rule = STATES["REPORT_ELSEWHERE"]
        paths = " ".join(shlex.quote(path) for path in elsewhere)
        yield _Finding(rule if explained else evolve(rule, severity="error"), values={"elsewhere": paths})
    elif reports and not explained:
        yield _Finding(STATES["REPORT_EMPTY"])
    elif not explained:
        yield _Finding(STATES["NOTHING_CAPTURED"])


def _without_consequences(findings: list[_Finding]) -> list[_Finding]:
    """Each code once, and none that only repeats what an earlier one explains."""
    left: dict[str, _Finding] = {}
    for finding in findings:
        code = finding.rule.code
        if code not in left and not any(code in other.rule.hides for other in left.values()):
            left[code] = finding
    return list(left.values())


def _status(run: Finished, findings: list[_Finding], has_data: bool) -> Status:
    if not has_data:
        return "nothing"
    codes = {finding.rule.code for finding in findings}
    if {"CAPTURE_RANGE_END_KILLED", "ENDED_ON_PURPOSE"} & codes:  # what was to be recorded is there in full
        return "captured"
    broken = any(finding.rule.severity == "error" for finding in findings)
    stopped = run.timed_out or run.interrupted or run.too_large
    return "partial" if run.exit_code != 0 or stopped or broken else "captured"


def _exit_code(status: Status, findings: list[_Finding]) -> ExitCode:
    """The first finding that decides; data is never worth more than a failure."""
    for finding in findings:
        if finding.rule.exit_code:
            return finding.rule.exit_code
    if status == "partial" and any(finding.rule.code in GROUPS["wanted_ends"] for finding in findings):
        return ExitCode.DONE
    codes = {"captured": ExitCode.DONE, "partial": ExitCode.WORKLOAD_FAILED, "nothing": ExitCode.NOTHING_CAPTURED}
    return codes[status]
