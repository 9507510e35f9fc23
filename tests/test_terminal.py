"""What people see in a terminal: a line that moves while a run goes on, a short result, colours, completion.

Terminals are real ones (pty): what is printed into a pipe is another thing.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import llm_perf_opt
from conftest import recording
from fake_tools import small_tools as small_tools
from fake_tools import tools as tools
from llm_perf_opt.capture import durations
from llm_perf_opt.capture.progress_reporter import progress_words
from llm_perf_opt.cli.main import build_parser, main
from llm_perf_opt.nsight.progress import Progress

PROGRAM = [sys.executable, "-c", "from llm_perf_opt.cli.main import entry; entry()"]
WORKLOAD = [sys.executable, "-c", "print('done')"]
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**more: str) -> dict[str, str]:
    """This one, with nothing in it that says how to colour."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "CI")}
    source = str(Path(llm_perf_opt.__file__).parents[1])
    return {**kept, "PYTHONPATH": os.pathsep.join([source, *sys.path]), "TERM": "xterm-256color", **more}


def on_terminal(*words: str | Path, width: int = 110, **variables: str) -> tuple[int, str]:
    """Exit code and all that a terminal of this width gets, escapes included."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    child = subprocess.Popen(
        [*PROGRAM, *map(str, words)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables)
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            new = os.read(mine, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not new:
            break
        seen += new
    os.close(mine)
    return child.wait(60), seen.decode("utf-8")


def in_pipe(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(**variables))


def plain(text: str) -> str:
    return _ESCAPE.sub("\n", text).replace("\r", "\n")


@pytest.mark.process
def test_what_is_done_does_not_need_the_terminal_any_more(tmp_path: Path) -> None:
    """Under nohup, and the window closed: every word that is printed is an error of the system."""

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    mine, theirs = pty.openpty()
    argv = [*PROGRAM, "report", str(recording("nsys-*-h200-threads.sqlite")), "--out", str(tmp_path / "out")]
    child = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), preexec_fn=own_terminal
    )
    os.close(theirs)
    os.close(mine)
    assert child.wait(60) == 0
    assert (tmp_path / "out" / "report.html").exists()


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_run_on_a_terminal_shows_plan_progress_and_a_short_result(tools: Path) -> None:
    code, seen = on_terminal("profile", "--no-measure", "--out", tools / "run", "--", *WORKLOAD, FAKE_PACE_NCU="0.15")
    assert code == 0, seen
    text = plain(seen)
    # the plan with its cost
    assert re.search(r"plan: counters of [\d,]+ of 4,367 launches in 1 capture, about \d+", text)
    assert re.search(r"capture 1 of 1: 248 launches, 1 pass, about \d+ s \(LLM@prefill, LLM@decode\)", text)
    # ncu's own lines, as a bar with the time left, in whole seconds
    assert re.search(r"[2-7] of 248 launches, 1 pass each, (?:\d+ min )?\d+ s left", text)
    assert "\x1b[1A" in seen or "\x1b[2K" in seen  # a line that is written again
    # then a result that fits a window
    result = text[text.index("Where:") :]
    assert "launch-bound" in result
    assert [f"fix {n}" in result for n in range(1, 5)] == [True] * 3 + [False]
    assert f"Page: {tools / 'run' / 'report.html'}" in result
    assert result.rstrip().endswith("Next: llm-perf try -- CMD")  # the code behind -c is hidden
    assert "layer0" not in result  # regions deep in the tree are in the files
    assert len([line for line in result.splitlines() if line.strip()]) < 60


def test_the_time_left_counts_the_captures_that_follow() -> None:
    state = Progress("profiling", kernels_done=3, total=248, passes=1, seconds_left=12.0)
    assert progress_words(state, later_s=95.0) == "3 of 248 launches, 1 pass each, 12 s + 1 min 35 s left"


@pytest.mark.process
def test_the_second_run_of_a_command_knows_how_long_it_takes(small_tools: Path) -> None:
    first = in_pipe("profile", "--no-measure", "--no-counters", "--out", small_tools / "one", "--", *WORKLOAD)
    assert "runs the program …" in first.stderr
    durations.remember("nsys", WORKLOAD, 75.0)
    _, seen = on_terminal(
        "profile", "--no-measure", "--no-counters", "--out", small_tools / "two", "--", *WORKLOAD, FAKE_PACE_NSYS="0.05"
    )
    assert "runs the program, about 1 min 15 s …" in seen
    assert re.search(r"about 1 min 1[0-5] s left", plain(seen))
    # what it really took is what the next one will be told
    assert 0 < (durations.expected("nsys", WORKLOAD) or 0) < 60
    assert durations.expected("nsys", [*WORKLOAD, "another"]) is None
    assert WORKLOAD[0] not in durations.durations_file().read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["", "[]", '{"a": "b"}', '{"a": NaN}', "\x00"])
def test_a_damaged_memory_costs_the_forecast_only(content: str) -> None:
    durations.durations_file().parent.mkdir(parents=True, exist_ok=True)
    durations.durations_file().write_text(content, encoding="utf-8")
    assert durations.expected("nsys", ["a"]) is None
    durations.remember("nsys", ["a"], 3.0)
    assert durations.expected("nsys", ["a"]) == 3.0


@pytest.mark.process
def test_into_a_pipe_a_run_writes_plain_lines(small_tools: Path) -> None:
    done = in_pipe("profile", "--no-measure", "--no-counters", "--out", small_tools / "run", "--", *WORKLOAD)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "timeline: nsys" in done.stderr
    assert done.stdout.startswith("Where: step takes")


@pytest.mark.process
def test_on_a_dumb_terminal_nothing_is_redrawn(small_tools: Path) -> None:
    _, seen = on_terminal(
        "profile", "--no-measure", "--no-counters", "--out", small_tools / "run", "--", *WORKLOAD, TERM="dumb"
    )
    assert "\x1b" not in seen
    assert "timeline: nsys" in seen


@pytest.mark.process
def test_quiet_leaves_the_path_of_the_report_and_errors(small_tools: Path) -> None:
    done = in_pipe("profile", "--no-measure", "--quiet", "--no-counters", "--out", small_tools / "run", "--", *WORKLOAD)
    assert (done.stdout, done.stderr) == (f"{small_tools / 'run' / 'report.html'}\n", "")
    failed = in_pipe(
        "profile", "--no-measure", "-q", "--out", small_tools / "bad", "--", *WORKLOAD, FAKE_NSYS="nsys-app-error"
    )
    assert failed.returncode != 0
    assert "error" in failed.stderr
    assert "timeline:" not in failed.stderr


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Progress(), ""),
        (Progress("profiling", 57, 143, 1, seconds_left=20.4), "57 of 143 launches, 1 pass each, 20 s left"),
        (Progress("profiling", 1, 2, 10, seconds_left=4.6), "1 of 2 launches, 10 passes each, 5 s left"),
        (Progress("profiling", 5), "5 launches"),
        # more than the timeline let expect: not "7 of 3"
        (Progress("profiling", 7, 3, 1, seconds_left=0.0), "7 launches, 1 pass each"),
        (Progress("report", percent=71), "the report is written 71 %"),
    ],
)
def test_progress_in_words(state: Progress, words: str) -> None:
    assert progress_words(state) == words


def test_captures_still_to_come_are_counted_too() -> None:
    state = Progress("profiling", 57, 143, 1, seconds_left=20.4)
    assert progress_words(state, 3.7) == "57 of 143 launches, 1 pass each, 20 s + 4 s left"


# -- colours --------------------------------------------------------------------------------------


def colours(text: str) -> bool:
    return bool(re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)", text))


@pytest.mark.process
def test_colour_only_where_it_is_supported(tmp_path: Path) -> None:
    small = ("report", recording("nsys-*-threads.sqlite"), "--format", "json", "--out", tmp_path / "report")
    assert colours(on_terminal(*small)[1])
    assert not colours(on_terminal(*small, NO_COLOR="1")[1])
    assert "\x1b" not in on_terminal(*small, TERM="dumb")[1]
    assert "\x1b" not in in_pipe(*small).stdout
    assert colours(in_pipe(*small, FORCE_COLOR="1").stdout)


@pytest.mark.process
@pytest.mark.parametrize("width", [60, 160])
def test_no_line_of_the_result_is_wider_than_the_window(width: int, tmp_path: Path) -> None:
    _, seen = on_terminal("demo", "--out", tmp_path / "demo", width=width)
    shown = _ESCAPE.sub("", seen[seen.index("Where:") : seen.index("Written to")]).splitlines()
    assert max(len(line.rstrip()) for line in shown) <= width
    assert any("launch-bound" in line and "LLM@decode" in line for line in shown)


# -- quiet and help, for every verb ---------------------------------------------------------------


def verbs() -> list[str]:
    (choices,) = [a.choices for a in build_parser()._actions if isinstance(a.choices, dict)]
    return list(choices)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_examples_and_speaks_quietly_and_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert "--json" in text
    assert "--quiet" in text
    assert f"\n  llm-perf {verb}" in text[text.index("examples:") :] or f"(llm-perf {verb}" in text


def test_quiet_reports_say_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-q", "--out", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == (f"{tmp_path / 'demo' / 'report.html'}\n", "")
    assert main(["report", "-q", "--format", "json", str(tmp_path / "demo" / "none.sqlite")]) == 2
    assert "none.sqlite" in capsys.readouterr().err


# -- completion -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shtab", reason="shtab is not installed: make setup")
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    path = tmp_path_factory.mktemp("completion") / "llm-perf.bash"
    done = in_pipe("completion", "bash")
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout, encoding="utf-8")
    return path


def completed(script: Path, folder: Path, *words: str) -> set[str]:
    """What bash would offer for the last word."""
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; '
        '_shtab_llm_perf llm-perf "${COMP_WORDS[COMP_CWORD]}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", program, "bash", str(script), "llm-perf", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}


@pytest.mark.process
def test_bash_completes_verbs_options_values_and_files(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").touch()
    assert completed(bash_script, tmp_path, "") >= set(verbs())
    assert completed(bash_script, tmp_path, "prof") == {"profile"}
    assert completed(bash_script, tmp_path, "profile", "--bud") == {"--budget"}
    assert completed(bash_script, tmp_path, "profile", "--level", "") == {"time", "roofline", "bound", "stalls", "full"}
    assert completed(bash_script, tmp_path, "report", "ru") == {"run.sqlite"}


@pytest.mark.process
def test_bash_completes_when_tab_is_pressed(bash_script: Path, tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(PS1="> ", INPUTRC="/dev/null"),
        start_new_session=True,
    )
    os.close(theirs)
    seen = ""

    def until(pattern: str) -> None:
        nonlocal seen
        end = time.monotonic() + 20
        while not re.search(pattern, _ESCAPE.sub("", seen)) and time.monotonic() < end:
            if select.select([mine], [], [], 0.5)[0]:
                seen += os.read(mine, 4096).decode("utf-8", "replace")

    try:
        os.write(mine, f"source {bash_script}; echo rea''dy\n".encode())
        until(r"[\r\n]ready")
        os.write(mine, b"llm-perf calib\t")
        until("llm-perf calibrate ")
        assert "llm-perf calibrate " in _ESCAPE.sub("", seen)
    finally:
        shell.kill()
        shell.wait()
        os.close(mine)


@pytest.mark.process
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_know_every_verb(shell: str) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed: make setup")
    done = in_pipe("completion", shell)
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in verbs())
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=done.stdout, text=True, timeout=60).returncode == 0


@pytest.mark.process
def test_completion_costs_nothing_at_the_start() -> None:
    check = (
        "import sys; from llm_perf_opt.cli.main import build_parser; build_parser(); sys.exit('shtab' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], env=environment(), timeout=60).returncode == 0
