"""The profiler is on around the chosen stages and nowhere else, and a program may be ended once they have been.

There is no GPU here: an object with the two functions of the CUDA runtime stands in for it, and the stages are
those of a real model under the real annotation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from llm_perf_opt.annotate import Gate, environment, read_log

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")

# One prompt and eight steps; says when the profiler goes on and off, and which step runs.
PROGRAM = """
import sys, threading, torch

class Runtime:
    def cudaProfilerStart(self): print("on"); return ANSWER
    def cudaProfilerStop(self): print("off"); return ANSWER

torch.cuda.cudart = lambda: Runtime()
torch.set_grad_enabled(False)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(8, 2)
    def forward(self, tokens):
        print(tokens.shape[1])
        return self.embed(tokens)

model = torch.nn.Sequential(Layer()).eval()

def generate():
    for length in (5, *[1] * 8):
        model(torch.zeros(1, length, dtype=torch.long))
    print("end")
"""


def run(code: str, gate: Gate, folder: Path, answer: str = "0", **variables: str) -> subprocess.CompletedProcess[str]:
    added = environment("stages") | gate.environment(folder / "gate.json", folder / "log")
    program = PROGRAM.replace("ANSWER", answer) + code
    variables = {**os.environ, **added, "LLM_PERF_ANNOTATE_SINK": str(folder / "sink"), **variables}
    return subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=300)


def test_the_profiler_is_on_in_the_windows_only(tmp_path: Path) -> None:
    ended = run("generate()", Gate({"prefill": (1,), "decode_step": (2, 8)}), tmp_path)
    assert ended.stdout.split() == ["on", "5", "off", "1", "on", "1", "off", *"11111", "on", "1", "off", "end"]
    assert ended.returncode == 0
    assert ended.stderr == ""
    log = read_log(tmp_path / "log")
    assert (log.windows, log.ended_before, log.troubles) == (3, "", [])


def test_a_program_is_ended_when_all_samples_are_in_and_may_clean_up(tmp_path: Path) -> None:
    code = """
import atexit; atexit.register(print, "atexit")
try: generate()
finally: print("finally")
"""
    ended = run(code, Gate({"prefill": (1,), "decode_step": (2,)}, stop=True), tmp_path)
    assert ended.stdout.split() == ["on", "5", "off", "1", "on", "1", "off", "finally", "atexit"]
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert read_log(tmp_path / "log").ended_before == "decode_step 3"
    pushed = [json.loads(line)["event"] for line in (tmp_path / "sink").read_text().splitlines()]
    assert pushed.count("push") == pushed.count("pop") == 3, "no range stays open"


def test_a_window_that_never_comes_ends_nothing(tmp_path: Path) -> None:
    ended = run("generate()", Gate({"prefill": (1,), "decode_step": (99,)}, stop=True), tmp_path)
    assert ended.stdout.split()[-1] == "end"
    assert read_log(tmp_path / "log").windows == 0, "not all windows have been"


def test_a_program_that_will_not_end_is_left_alone(tmp_path: Path) -> None:
    code = """
for _ in range(3):
    try: generate()
    except BaseException as error: print(type(error).__name__)
"""
    ended = run(code, Gate({"prefill": (1,)}, stop=True), tmp_path)
    assert ended.stdout.split().count("SystemExit") == 2
    assert ended.stdout.split()[-1] == "end"
    assert "catches SystemExit" in ended.stderr
    assert read_log(tmp_path / "log").ended_before == "", "nobody shall read that it was ended"


def test_a_program_whose_model_runs_in_a_thread_ends_too(tmp_path: Path) -> None:
    code = """
worker = threading.Thread(target=generate, daemon=True)
worker.start()
threading.Event().wait(20)
print("waited for ever")
"""
    ended = run(code, Gate({"decode_step": (1,)}, stop=True), tmp_path)
    assert "waited" not in ended.stdout
    assert read_log(tmp_path / "log").ended_before == "decode_step 2"


@pytest.mark.parametrize(
    ("answer", "told"), [("2", "answered with error 2"), ("1 / 0", "ZeroDivisionError")], ids=["refused", "broken"]
)
def test_a_runtime_that_refuses_leaves_the_program_alone_and_is_told(tmp_path: Path, answer: str, told: str) -> None:
    ended = run("generate()", Gate({"prefill": (1,)}, stop=True), tmp_path, answer)
    assert ended.returncode == 0
    assert ended.stdout.split()[-1] == "end"
    (trouble,) = read_log(tmp_path / "log").troubles
    assert told in trouble


@pytest.mark.parametrize("content", ["[]", '{"windows": {"prefill": ["x"]}, "stop": true}'])
def test_a_damaged_file_gates_nothing_and_is_told(tmp_path: Path, content: str) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(content)
    ended = run("generate()", Gate({}), tmp_path, LLM_PERF_GATE=str(damaged))
    assert "on" not in ended.stdout.split()
    assert ended.returncode == 0
    assert len(read_log(tmp_path / "log").troubles) == 1
