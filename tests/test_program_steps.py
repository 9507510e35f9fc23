"""Steps that a server marks itself are counted as those of known engines; what came last is told while it is idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt import inject
from llm_perf_opt.inject.environment import INJECTED
from llm_perf_opt.readers.measured import collect, read_measured
from test_serving import wait_until
from test_step_numbers import NAMES

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate.program_steps import ProgramSteps, is_step
from _llm_perf_annotate.seen_ranges import SeenRanges
from _llm_perf_annotate.stages import state
from _llm_perf_annotate.timers import ENDING


@pytest.mark.parametrize(("name", "phase"), [(name, phase) for name, _, phase in NAMES])
def test_names_of_steps_are_those_that_reports_know(name: str, phase: str) -> None:
    is_known = phase not in ("step", "draft") or name.startswith(("[Executor]", "execute_"))
    assert is_step(name) == is_known


@pytest.mark.parametrize("name", [None, 7, "", "execute_model", "step 7", "attention", "prefill_kernel"])
def test_other_names_are_no_steps(name: object) -> None:
    assert not is_step(name)


@pytest.fixture
def counted() -> Iterator[tuple[SeenRanges, ProgramSteps]]:
    seen = SeenRanges()
    yield seen, ProgramSteps(seen)
    assert state.step is None


def test_the_outermost_range_of_a_step_counts_and_calls_inside_are_its_own(
    counted: tuple[SeenRanges, ProgramSteps],
) -> None:
    seen, steps = counted
    for domain, name, count, inside in (
        ("", "serve", 0, None),
        ("mine", "decode_step, batch = 2, tokens = 2", 1, "decode_step, batch = 2, tokens = 2"),
        ("mine", "step", 1, "decode_step, batch = 2, tokens = 2"),  # inside it
        ("", "prefill", 1, "decode_step, batch = 2, tokens = 2"),
    ):
        seen.begin(domain, name)
        assert (steps.count, state.step) == (count, inside)
    seen.end("")
    seen.end("mine")
    assert state.step is not None
    seen.end("mine")
    assert state.step is None
    seen.end("")
    seen.begin("LLM", "prefill")  # of the annotation, which counts its own
    assert (steps.count, state.step) == (1, None)
    seen.end("LLM")


def test_a_step_that_does_not_open_is_none(counted: tuple[SeenRanges, ProgramSteps]) -> None:
    seen, steps = counted

    def ends(*_: object) -> None:
        raise SystemExit

    seen.begin("", "step")
    seen.undo("")
    assert (steps.count, seen.counts["", "step"]) == (0, 0)
    seen.listeners.append(ends)
    with pytest.raises(SystemExit):
        seen.begin("", "step")
    assert steps.count == 0


IDLE = """
import nvtx, os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for number in range(7):
    with nvtx.annotate("decode_step, batch = 1, tokens = 1, new = 1"):
        time.sleep(0.001)
print("idle", flush=True)
time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.parametrize("ending", [False, True])
def test_what_came_last_is_told_and_written_while_a_server_is_idle(ending: bool, tmp_path: Path) -> None:
    """It may have to be killed, and a window may be waiting for just these steps."""
    times, notes = tmp_path / "times", tmp_path / "notes"
    times.mkdir()
    environment = {**os.environ, **inject.environment("off", ranges=True, log=notes, timers=times, steps=True)}
    with subprocess.Popen([sys.executable, "-c", IDLE], env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"idle\n"
            began = time.monotonic()
            if ending:
                (times / inject.ENDING).touch()
            wait_until(lambda: any(times.glob("*.host")))
            assert ending == (time.monotonic() - began < 0.6)  # otherwise only what nobody else writes
            wait_until(lambda: notes.exists() and "steps" in notes.read_text())
        finally:
            server.kill()
    collect([times], tmp_path / "run.json")
    assert len(read_measured(tmp_path / "run.json").ranges) == 7
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [note["count"] for note in told if note["event"] == "steps"][-1] == 7


def test_both_sides_mean_the_same_file() -> None:
    assert inject.ENDING == ENDING
