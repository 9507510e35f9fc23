"""From kernels to lines of the program: marks inside it, marks and samples of a recording, functions of a PyTorch trace."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from conftest import RECORDINGS, recording, regions_of
from fake_tools import tools  # noqa: F401 - a fixture
from llm_perf_opt.analysis.build import build_report
from llm_perf_opt.analysis.code_lines import LaunchedFrom, launching_places
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.verdicts.by_line import line_records
from llm_perf_opt.analysis.verdicts.counted_work import Amounts
from llm_perf_opt.analysis.verdicts.launches import Kind, Launches
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.api.reporting import build_from, publish
from llm_perf_opt.api.source_text import with_source
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import environment, with_lines
from llm_perf_opt.inject.environment import INJECTED, OWN_CODE
from llm_perf_opt.metrics.families import fused_operators
from llm_perf_opt.metrics.source_owner import is_own, library_name
from llm_perf_opt.readers import nsys_lines
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.code import Place, parse_place
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.regions.operator_calls import product_shape
from llm_perf_opt.regions.signatures import Signature
from llm_perf_opt.regions.tensors import as_text, from_text
from llm_perf_opt.report.answer import answer_of
from llm_perf_opt.rundir.scrub import sqlite as scrubbed
from llm_perf_opt.rundir.scrub.private import Private
from synthetic import MAIN_THREAD, make_export
from test_traffic import profile
from test_verdicts import evaluated, performance

PROGRAM = RECORDINGS / "programs" / "lines.py"
MS = 1_000_000


# -- whose code it is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", False),
        ("torch/nn/modules/linear.py", False),  # as PyTorch's profiler shortens it
        ("/usr/lib/python3.12/threading.py", False),
        ("threading.py", False),
        ("/opt/venv/lib/python3.12/site-packages/transformers/models/qwen3/modeling_qwen3.py", True),
        ("/opt/venv/lib/python3.12/site-packages/transformers/generation/utils.py", False),
        ("/tmp/torchinductor_me/ab/cabcd.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<ipython-input-3-abc>", True),
        ("/home/me/torch_experiments/model.py", True),
    ],
)
def test_whose_code_a_file_is(file: str, own: bool) -> None:
    assert is_own(file) is own


def test_waiting_for_a_data_loader_has_a_name_of_its_own() -> None:
    loader = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
    assert library_name(loader, "__next__") == "DataLoader.__next__"
    assert not library_name(loader, "__init__")


def test_what_follows_a_graph_break_has_the_name_of_its_function() -> None:
    place = parse_place("/w/train.py(11): torch_dynamo_resume_in_forward_at_10")
    assert place == Place("/w/train.py", 11, "forward")


def test_places_are_read_as_the_profiler_writes_them() -> None:
    assert parse_place("/a (b)/c.py(12): f.<locals>.<lambda>") == Place("/a (b)/c.py", 12, "f.<locals>.<lambda>")
    assert parse_place("<built-in function len>") is None
    assert parse_place("nn.Module: Linear_0") is None


# -- inside the program ------------------------------------------------------------------------------

_WATCHED = """
import json, sys
sys.path.insert(0, sys.argv[1])
from _llm_perf_annotate import lines
marks = []
found = lines.Lines(lines.OwnCode(json.load(open(sys.argv[2]))), marks.append)

def inner(x):
    return x + 1                     # line 9

class Model:
    def forward(self, x):
        y = json.dumps(inner(x))     # line 13
        return y

def parts():
    yield 1                          # line 17
    yield 2

def main():
    lines.start(found)
    model = Model()
    for _ in range(2):
        model.forward(1)             # line 24
    list(parts())                    # line 25
    found.left = int(sys.argv[3])
    for _ in range(1000):
        pass
    return 1

main()
if found.on:
    found.stop()
print(json.dumps(marks))
"""


def marked_lines(tmp_path: Path, left: int = 10**6, python: str = sys.executable) -> list[int | None]:
    """Lines in the order in which a program was in them; None where it is told that nothing is known any more."""
    program = tmp_path / "program.py"
    program.write_text(_WATCHED, encoding="utf-8")
    done = subprocess.run(
        [python, str(program), str(INJECTED), str(OWN_CODE), str(left)], capture_output=True, text=True, check=True
    )
    known: dict[str, int] = {}
    seen: list[int | None] = []
    for mark in json.loads(done.stdout):
        if mark.startswith("llm-perf:line "):
            number, _, text = mark.removeprefix("llm-perf:line ").partition(" ")
            place = parse_place(text)
            assert place is not None
            assert place.file == str(program)
            known[f"llm-perf:{number}"] = place.line
        else:
            seen.append(known.get(mark))
    return seen


@pytest.mark.process
def test_every_line_of_the_program_is_marked_and_none_of_a_library(tmp_path: Path) -> None:
    seen = marked_lines(tmp_path)
    first = seen.index(13)
    # The call, the function it calls, and the line again after each return: json's own lines are not among them.
    assert [line for line in seen[first - 1 : first + 5] if line != 12] == [24, 13, 9, 13, 14, 24]
    assert seen.count(9) == 2
    at = seen.index(17)
    assert seen[at - 1 : at + 2] == [25, 17, 25]
    assert seen[-1] is None


_INSTALLED = """
import json, sys
sys.path.insert(0, sys.argv[2])
from _llm_perf_annotate import lines
marks = []

def train():
    return 1                         # line 8

def main():
    lines.start(lines.Lines(lines.OwnCode(json.load(open(sys.argv[1]))), marks.append))
    train()
    sys.settrace(None)
    print(json.dumps(marks))

if __name__ == "__main__":
    main()
"""


@pytest.mark.process
@pytest.mark.parametrize(("package", "known"), [("recipes", True), ("torchvision", False)])
@pytest.mark.parametrize("command", [False, True])
def test_a_package_that_was_started_is_the_programs_own_wherever_it_is_installed(
    package: str, known: bool, command: bool, tmp_path: Path
) -> None:
    """By `python -m` or by a command that pip made; of a library that everybody knows it is not."""
    folder = tmp_path / "lib" / "site-packages" / package
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(_INSTALLED, encoding="utf-8")
    (folder / "__init__.py").touch()
    started = ["-m", f"{package}.train"]
    if command:
        (tmp_path / "train").write_text(f"from {package}.train import main\nmain()\n", encoding="utf-8")
        started = [
            "-c",
            "import runpy, sys; sys.executable = sys.argv[0] = sys.argv.pop(1); runpy.run_path(sys.argv[0], run_name='__main__')",
            str(tmp_path / "train"),
        ]
    paths = {"PYTHONPATH": str(folder.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *started, str(OWN_CODE), str(INJECTED)],
        env=os.environ | paths,
        capture_output=True,
        text=True,
        check=True,
    )
    places = [mark.partition("line ")[2] for mark in json.loads(done.stdout)]
    assert any(place.endswith(f"{package}/train.py(8): train") for place in places) == known


@pytest.mark.process
def test_marks_keep_to_their_budget(tmp_path: Path) -> None:
    seen = marked_lines(tmp_path, left=100)
    assert seen.count(27) + seen.count(28) <= 101
    assert seen[-1] is None


@pytest.mark.process
def test_what_goes_wrong_never_reaches_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_WATCHED.replace("marks.append", "lambda _: 1 / 0"), encoding="utf-8")
    command = [sys.executable, str(program), str(INJECTED), str(OWN_CODE), "1000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.count("marking the lines of the program failed and is left out: ZeroDivisionError") == 1
    assert done.returncode == 0


_OTHERS = """
import json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from _llm_perf_annotate import lines
rule = json.load(open(sys.argv[2]))
rule["library"].append("library.py$")
rule["named"] = [["library.py", "__next__", "Loader.__next__"]]
marks = []
found = lines.Lines(lines.OwnCode(rule), marks.append)

def theirs(frame, event, value):
    return None

def one_more():
    x = 1
    return x

def epoch(loader):
    lines.start(found)
    for batch in loader:
        pass
    child = os.fork()
    if child == 0:
        before = len(marks)
        one_more()
        os._exit(len(marks) - before)
    assert os.waitpid(child, 0)[1] == 0
    one_more()
    sys.settrace(theirs)
    threading.settrace(theirs)
    found.stop()
    found.pause()
    return sys.gettrace() is theirs and threading.gettrace() is theirs

import library
print(json.dumps([epoch(library.Loader()), marks]))
"""
_LIBRARY = """
class Loader:
    left = 2
    def __iter__(self):
        return self
    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
"""


@pytest.mark.process
def test_loaders_end_forked_children_are_left_alone_and_so_is_a_tracer_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_OTHERS, encoding="utf-8")
    (tmp_path / "library.py").write_text(_LIBRARY, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "program.py"), str(INJECTED), str(OWN_CODE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, marks = json.loads(done.stdout)
    assert kept
    named = [mark.removeprefix("llm-perf:") for mark in marks if "in Loader" in mark or mark.endswith("out")]
    assert named == ["in Loader.__next__", "out"] * 3  # the last call raises StopIteration


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_every_operator_of_a_model_is_in_the_line_that_calls_it(tmp_path: Path) -> None:
    """Truth by construction: the program's lines that launch are tagged, and each block launches the same operators."""
    program = tmp_path / "observed.py"
    program.write_text(_OBSERVED, encoding="utf-8")
    arguments = [str(program), str(INJECTED), str(OWN_CODE), str(PROGRAM.parent)]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    counted = {(int(line), name): count for line, name, count in json.loads(done.stdout)}
    text = PROGRAM.read_text(encoding="utf-8").splitlines()
    tag = {at: line.rpartition("#: ")[2] for at, line in enumerate(text, 1) if "  #: " in line}
    by_tag = {(tag.get(line, f"line {line}"), name): count for (line, name), count in counted.items()}
    steps, layers = 3, 2
    assert by_tag["up", "mm"] == by_tag["qkv", "mm"] == by_tag["out", "mm"] == by_tag["down", "mm"] == steps * layers
    assert by_tag["gelu", "gelu"] == by_tag["norm", "native_layer_norm"] == steps * layers
    assert by_tag["residual", "add"] == by_tag["down", "add"] == steps * layers
    assert by_tag["head", "mm"] == by_tag["scale", "mul"] == by_tag["top", "amax"] == steps
    working = {"mm", "bmm", "_softmax", "gelu", "add", "mul", "amax", "native_layer_norm"}
    assert all(not of.startswith("line") for of, name in by_tag if name in working)


_OBSERVED = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[3]]
import torch
from collections import Counter
from torch.utils._python_dispatch import TorchDispatchMode
import lines as program
from _llm_perf_annotate import lines

now, places, counts = [None], {}, Counter()

def mark(text):
    if text.startswith("llm-perf:line "):
        number, _, place = text[14:].partition(" ")
        places["llm-perf:" + number] = place.rpartition("(")[2].partition(")")[0]
    else:
        now[0] = places.get(text)

class Note(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        counts[now[0] or "0", function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

rule = json.load(open(sys.argv[2]))
rule["library"].append("observed.py$")
net, x = program.Net(64, 2), torch.randn(512, 64)
with torch.no_grad(), Note():
    lines.start(lines.Lines(lines.OwnCode(rule), mark))
    for _ in range(3):
        program.step(net, x)
    sys.settrace(None)
print(json.dumps([[line, name, count] for (line, name), count in counts.items()]))
"""


def test_a_program_under_nsys_is_asked_for_its_lines_and_no_other() -> None:
    asked = with_lines(environment("off", base_env={}), {"PYTHONPATH": "/theirs"})
    assert asked["LLM_PERF_LINES"] == str(OWN_CODE)
    assert asked["PYTHONPATH"] == f"{INJECTED}:/theirs"
    assert environment("off", ranges=True, base_env=asked)["LLM_PERF_LINES"] == ""


@pytest.mark.process
def test_a_run_notes_lines_unless_it_is_told_not_to(tools: Path) -> None:  # noqa: F811
    told = profile(tools, "--no-counters")
    assert "--python-sampling true --python-sampling-frequency 100" in told
    assert "--include-blobs true" in told
    assert f"LLM_PERF_LINES={OWN_CODE}" in told


@pytest.mark.process
def test_no_lines_where_nobody_wants_them(tools: Path) -> None:  # noqa: F811
    told = profile(tools, "--no-counters", "--no-lines")
    assert "python-sampling" not in told
    assert "include-blobs" not in told
    assert "LLM_PERF_LINES" not in told


# -- in a recording ----------------------------------------------------------------------------------


def sample(strings: dict[str, int], *frames: tuple[str, str, int]) -> bytes:
    """A stack as nsys stores it, innermost first: function, file, line."""
    head = bytes(44) + struct.pack("<I", len(frames))
    return head + b"".join(
        struct.pack("<QQQ", strings[function], strings[file], line) for function, file, line in frames
    )


def with_marks(path: Path, marks: Sequence[tuple[int, str]], samples: Sequence[tuple[int, Any]] = ()) -> Path:
    """A recording with marks of ours and stacks of nsys on the launching thread."""
    names = {"step": 100, "/home/me/train.py": 101, "sleep": 102, "/usr/lib/python3.12/queue.py": 103}
    names["MODEL"] = 104
    texts = {"MODEL": "/opt/site-packages/transformers/models/llama/modeling_llama.py"}
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData BLOB")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, texts.get(text, text)) for text, n in names.items()])
        rows = [(at, text, MAIN_THREAD, None) for at, text in marks]
        rows += [(at, None, MAIN_THREAD, sample(names, *frames)) for at, frames in samples]
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, ?, ?, NULL, 0, ?)", rows)
        db.commit()
    return path


def step_of(timeline: Timeline) -> RegionPerformance:
    return performance(evaluated(timeline), "step")


LOOP = "llm-perf:line 1 /home/me/train.py(10): main"
STEP = "llm-perf:line 2 /home/me/train.py(20): step"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Three steps of 10 ms, a kernel `a` from line 10 and a kernel `b` from line 20 in each; only the first is marked."""
    ranges = [("step", at * 10 * MS, at * 10 * MS + 9 * MS) for at in range(3)]
    kernels = [
        (name, at * 10 * MS + launched, at * 10 * MS + start, at * 10 * MS + start + MS)
        for at in range(3)
        for name, launched, start in (("a", 1_000, 2_000), ("b", 6 * MS, 6 * MS + 1_000))
    ]
    return make_export(tmp_path / "run.sqlite", ranges, kernels)


def read_timeline(path: Path) -> Timeline:
    found = read_recording(path, launch_config=True)
    assert isinstance(found, Timeline)
    return found


def test_a_launch_belongs_to_the_line_its_thread_was_in_and_those_like_it_to_the_same(export: Path) -> None:
    marks = [(0, LOOP), (0, STEP), (500, "llm-perf:1"), (5 * MS, "llm-perf:2"), (8 * MS, "llm-perf:0")]
    found = step_of(read_timeline(with_marks(export, marks)))
    lines = {line.line: line for line in found.lines}
    assert {at: (line.calls, line.kernels) for at, line in lines.items()} == {10: (3, ["a"]), 20: (3, ["b"])}
    assert found.lines_known == pytest.approx(1.0)
    assert lines[10].file == "/home/me/train.py"
    assert lines[10].function == "main"


def test_a_pause_ends_what_is_known_of_all_threads_and_so_do_marks_that_are_too_many_to_read(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = MAIN_THREAD + 1
    with_marks(export, [(0, LOOP), (500, "llm-perf:1"), (2 * MS, "llm-perf:0"), (20 * MS, "llm-perf:1")])
    with closing(sqlite3.connect(export)) as db:
        rows = [(0, 9 * MS, 59, "other", other), (1 * MS, None, 34, "llm-perf:in DataLoader.__next__", other)]
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, NULL, 0, NULL)", rows)
        db.commit()

    def spans(name: str) -> list[tuple[int, int]]:
        timeline = read_timeline(export)
        host = timeline.host
        names = [timeline.strings[number] for number in host.name.tolist()]
        found = zip(names, host.start.tolist(), host.end.tolist(), strict=True)
        return [(start, end) for of, start, end in found if of == name]

    assert spans("DataLoader.__next__") == [(1 * MS, 2 * MS)]
    assert spans("train.py(10): main")[-1][0] == 20 * MS
    monkeypatch.setattr(nsys_lines, "_MOST_MARKS", 4)
    assert spans("train.py(10): main") == [(500, 2 * MS)]


def test_the_idle_time_of_a_line_is_what_the_gpu_waited_while_the_host_was_in_it(export: Path) -> None:
    marks = [(0, LOOP), (0, STEP), (500, "llm-perf:1"), (3 * MS, "llm-perf:2"), (8 * MS, "llm-perf:0")]
    found = step_of(read_timeline(with_marks(export, marks)))
    assert found.idle is not None
    idle = Counter[int]()
    for line in found.idle.lines:
        idle[line.line] += line.time_ns
    # Idle from 1.002 to 6.001 ms and from 7.001 to 9 ms; line 10 until 3 ms, line 20 from there to 8 ms.
    assert idle == {10: 3 * MS - 1_002_000 + (2_000 - 500), 20: 6_001_000 - 3 * MS + 8 * MS - 7_001_000}


def test_samples_tell_of_lines_where_there_are_no_marks(export: Path) -> None:
    stack = (("sleep", "/usr/lib/python3.12/queue.py", 5), ("step", "/home/me/train.py", 30))
    samples = [(at, stack) for at in range(11 * MS + 500_000, 16 * MS, MS)]
    timeline = read_timeline(with_marks(export, [(0, LOOP), (500, "llm-perf:1"), (8 * MS, "llm-perf:0")], samples))
    found = step_of(timeline)
    assert found.idle is not None
    idle = {line.line: line.time_ns for line in found.idle.lines}
    assert idle[30] == pytest.approx(5 * MS, rel=0.05)
    assert any("train.py(30): step" in cause.what for cause in found.idle.causes)


MODEL = "llm-perf:line 3 /opt/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py(60): forward"


def test_a_sample_says_nothing_of_a_launch_where_marks_tell_of_like_ones(export: Path) -> None:
    """The sample stands for a millisecond, in which `b` is launched from somewhere else."""
    marks = [(0, LOOP), (0, STEP), (500, "llm-perf:1"), (5 * MS, "llm-perf:2"), (8 * MS, "llm-perf:0")]
    samples = [(at, (("step", "/home/me/train.py", 30),)) for at in range(15 * MS, 19 * MS, MS)]
    found = step_of(read_timeline(with_marks(export, marks, samples)))
    assert {line.line: line.kernels for line in found.lines} == {10: ["a"], 20: ["b"], 30: []}


def test_a_line_of_a_library_has_the_users_own_line_that_leads_there(export: Path) -> None:
    # Line 10 calls the model (3), which returns to it; then line 20, from which nothing of a library is called.
    marks = [(0, LOOP), (0, STEP), (0, MODEL), (500, "llm-perf:1"), (700, "llm-perf:3"), (5 * MS, "llm-perf:1")]
    marks += [(5 * MS + 500, "llm-perf:2"), (8 * MS, "llm-perf:0"), (10 * MS, "llm-perf:3"), (11 * MS, "llm-perf:0")]
    report = build_report([read_timeline(with_marks(export, marks))], ReportOptions())
    lines = {line.line: line.called_from for line in performance(report, "step").lines}
    assert (lines[10], lines[20]) == (None, None)
    assert lines[60] is not None
    assert (lines[60].file, lines[60].line) == ("/home/me/train.py", 10)
    fix = next(fix for fix in report.answer.fixes if any(line.line == 60 for line in fix.lines))
    (at,) = (shown.at for shown in answer_of(report).fixes if shown.fix is fix)
    assert at.endswith("called from train.py:10 main.")


def test_a_stack_has_the_users_own_line_above_a_library(export: Path) -> None:
    stack = (("step", "/usr/lib/python3.12/queue.py", 5), ("sleep", "MODEL", 60), ("step", "/home/me/train.py", 30))
    samples = [(at, stack) for at in range(11 * MS, 19 * MS, MS)]
    timeline = read_timeline(with_marks(export, [], samples))
    (line,) = step_of(timeline).lines
    assert line.line == 60
    assert line.called_from is not None
    assert (line.called_from.file, line.called_from.line, line.called_from.function) == (
        "/home/me/train.py",
        30,
        "step",
    )


def test_the_reason_counts_the_waiting_of_a_line_as_the_table_by_line_does(export: Path) -> None:
    """The gap of 5 ms: two thirds in line 20, the rest in line 10."""
    marks = [(0, LOOP), (0, STEP), (500, "llm-perf:1"), (3 * MS, "llm-perf:2"), (9 * MS, "llm-perf:0")]
    found = step_of(read_timeline(with_marks(export, marks)))
    assert found.idle is not None
    told = {cause.what: cause.time_ns for cause in found.idle.causes if cause.what}
    by_line = {f"train.py({line.line}): {line.function}": line.idle.of("ns") for line in found.lines if line.idle}
    assert told == {"train.py(10): main": 3 * MS - 1_002_000, "train.py(20): step": by_line["train.py(20): step"]}
    assert by_line["train.py(10): main"] == told["train.py(10): main"] + 1_500  # a gap of the length of a launch


@pytest.mark.parametrize(
    "blob", [b"", bytes(44), bytes(44) + struct.pack("<I", 2**32 - 1), bytes(44) + b"\xff" * 100, b"\xff" * 3000]
)
def test_stacks_that_make_no_sense_are_left_out(export: Path, blob: bytes) -> None:
    with_marks(export, [(0, "llm-perf:line x"), (1, "llm-perf:line 9 no place"), (2, "llm-perf:9")])
    with closing(sqlite3.connect(export)) as db:
        db.execute("INSERT INTO NVTX_EVENTS VALUES (3, NULL, 34, NULL, ?, NULL, 0, ?)", (MAIN_THREAD, blob))
        db.commit()
    assert len(read_timeline(export).code) == 0


def test_a_shared_recording_keeps_the_lines_without_folders_and_without_stacks(export: Path, tmp_path: Path) -> None:
    stack = (("step", "/home/me/train.py", 30),)
    with_marks(export, [(0, LOOP), (500, "llm-perf:1"), (600, "mine: secret")], [(700, stack)])
    scrubbed.clean(export, tmp_path / "shared.sqlite", Private())
    data = (tmp_path / "shared.sqlite").read_bytes()
    assert b"/home/me" not in data
    assert b"mine: secret" not in data
    timeline = read_timeline(tmp_path / "shared.sqlite")
    assert {timeline.strings[place] for place in timeline.code.place.tolist()} == {"train.py(10): main"}


def test_the_text_of_a_line_is_read_for_a_run_of_ones_own_alone(export: Path, tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("import torch\n\nx = torch.ones(1)\n", encoding="utf-8")
    line = f"llm-perf:line 1 {source}(3): <module>"
    timeline = read_timeline(with_marks(export, [(0, line), (500, "llm-perf:1"), (8 * MS, "llm-perf:0")]))
    told = evaluated(timeline)
    scope = told.main_scope
    assert scope is not None

    def texts() -> set[str]:
        return {x.text for r in scope.regions if r.performance for x in r.performance.lines}

    assert texts() == {""}
    with_source(told)
    assert texts() == {"x = torch.ones(1)"}


# -- recordings of the program whose lines are known ---------------------------------------------------

LINE_OF = {
    line.rpartition("#: ")[2]: at
    for at, line in enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1)
    if "  #: " in line
}


@pytest.mark.parametrize(("program", "least"), [("eager", 0.95), ("train", 0.95), ("graph", 0.90)])
def test_gpu_time_is_on_the_line_it_comes_from(program: str, least: float) -> None:
    """An NVTX range around every tagged line is the truth; kernels of graphs belong to the line they were captured in."""
    timeline = read_timeline(recording(f"lines-*-{program}"))
    attribution, place = attribute(timeline, "auto"), launching_places(timeline, timeline.code)
    right = whole = 0
    for at, inside in enumerate(attribution.kernels.by_domain[0].tolist()):
        truth = [part for part in attribution.table.key(inside).split("/") if part.startswith("truth ")]
        if inside >= 0 and truth:
            found = parse_place(timeline.strings[place[at]]) if place[at] >= 0 else None
            time = int(timeline.kernels.end[at] - timeline.kernels.start[at])
            whole += time
            right += time if found and found.line == LINE_OF[truth[-1].removeprefix("truth ")] else 0
    assert whole > 0.9 * int((timeline.kernels.end - timeline.kernels.start).sum())
    assert right >= least * whole


def test_the_table_by_line_has_the_times_of_the_truth() -> None:
    found = evaluated(read_timeline(recording("lines-*-eager")), include=["step"])
    regions = regions_of(evaluated(read_timeline(recording("lines-*-eager"))).main_scope)
    truth = Counter[int]()
    for key, region in regions.items():
        if (tag := key.rpartition("/")[2]).startswith("truth "):
            truth[LINE_OF[tag.removeprefix("truth ")]] += region.inclusive.gpu_time_ns or 0
    lines = {line.line: line.share for line in performance(found, "step").lines if line.calls}
    whole = sum(truth.values())
    assert {at: pytest.approx(time / whole, abs=0.01) for at, time in truth.items()} == lines


def test_lines_of_a_few_steps_tell_those_of_the_rest_by_what_was_launched_before() -> None:
    """Two products of one launch configuration differ in length: `down` is four times `out`. Only their order tells."""
    timeline = read_timeline(recording("lines-*-eager"))
    steps = timeline.ranges.chosen(np.array([timeline.strings[n] == "step" for n in timeline.ranges.name.tolist()]))
    third = np.sort(steps.start)[2]
    noted = timeline.code.chosen(timeline.code.start < third)
    every, few = (
        {
            line.line: line.share
            for line in performance(evaluated(evolve(timeline, ranges=steps, code=code)), "step").lines
            if line.calls
        }
        for code in (timeline.code, noted)
    )
    assert few == {at: pytest.approx(share, abs=0.01) for at, share in every.items()}
    assert every[LINE_OF["down"]] > 1.5 * every[LINE_OF["out"]]


def test_work_of_a_line_is_that_of_the_launches_that_take_as_long() -> None:
    """One signature, two sizes: 1 and 4 TFLOP. A third line launches both, half and half."""
    kinds = [
        Kind("gemm", "gemm", (8,), (128,), 1, Amounts(flops={"tensor_bf16": flops}, bytes={"dram": flops / 2}))
        for flops in (1e12, 4e12)
    ]
    launches = Launches.of(kinds, [(0, None, 30, 30_000), (1, None, 30, 120_000)])
    roofed = Roofed(launches, {}, {}, np.array([15_000.0, 90_000.0]), np.array([True, True]), ["", ""])
    gemm = Signature("gemm", "gemm", (8,), (128,))
    launched = [
        LaunchedFrom(Place("a.py", line, "f"), "", gemm, 20, 20 * each)
        for line, each in ((1, 1_000.0), (2, 4_000.0), (3, 2_500.0))
    ]
    records, known = line_records(launched, roofed, [], {})
    assert known == 1.0
    told = {record.line: (record.flops, record.dram, record.of_roof) for record in records}
    each = {
        line: (flops.of("FLOP"), dram.of("B"), roof) for line, (flops, dram, roof) in told.items() if flops and dram
    }
    assert each == {1: (20e12, 10e12, 0.5), 2: (80e12, 40e12, 0.75), 3: (50e12, 25e12, 0.625)}


def test_recordings_of_several_ranks_have_their_lines_too() -> None:
    """The same program twice: the table and the fixes are those of one, of twice as many steps."""
    path = recording("lines-*-eager")
    one, both = (build_report([read_timeline(path)] * count, ReportOptions()) for count in (1, 2))

    def told(report: NCUProfileRegionReport) -> tuple[dict[int, tuple[int, float]], dict[int, float]]:
        step = regions_of(report.main_scope)["step"].performance
        assert step
        assert step.lines_known == 1.0
        fix = next(fix for fix in report.answer.fixes if fix.rule == "launch.graph")
        lines = {line.line: (line.calls, line.time.of("ns")) for line in step.lines if line.calls}
        return lines, {line.line: line.time_ns or 0.0 for line in fix.lines}

    (of_one, fix_of_one), (of_both, fix_of_both) = told(one), told(both)
    assert of_both == {line: (2 * calls, pytest.approx(2 * time)) for line, (calls, time) in of_one.items()}
    assert fix_of_both == pytest.approx(fix_of_one)


def test_every_output_shows_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(recording("lines-*-eager"))
    assert main(["report", source, "--out", str(tmp_path / "out")]) == 0
    assert "lines.py:31 forward" in capsys.readouterr().out
    for name in ("report.md", "report.html"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "By line" in text
        assert "lines.py:31 forward" in text
        assert "At lines.py:33 forward" in text  # beside the fix
        assert "806 µs to 1.32 ms" in text  # its interval
    found = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (step,) = [r["performance"] for r in found["scopes"][-1]["regions"] if r["key"] == "step"]
    assert {line["line"] for line in step["lines"] if line["calls"]} == {LINE_OF[tag] for tag in _EAGER}
    assert all(line["text"] == "" for line in step["lines"])  # whose files these are is not known
    assert main(["export", source, "--perfetto", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {"lines.py(31): forward"} <= {event["name"] for event in events if event.get("cat") == "line"}


_EAGER = ("qkv", "scores", "mixed", "out", "norm", "residual", "up", "gelu", "down", "head", "scale", "top", "total")


def test_a_fix_names_the_lines_it_is_about() -> None:
    told = evaluated(read_timeline(recording("lines-*-waits"))).answer
    (fix,) = [fix for fix in told.fixes if fix.rule == "host.sync"]
    assert fix.lines[0].line == LINE_OF["item"]
    assert fix.lines[0].function == "waits"


@pytest.mark.parametrize("program", ["eager", "graph", "train", "waits"])
def test_lines_of_a_fix_add_up_to_what_it_says_it_takes(program: str) -> None:
    found = evaluated(read_timeline(recording(f"lines-*-{program}"))).opportunities
    assert found
    for one in found:
        known = sum(line.time_ns or 0.0 for line in one.lines) / one.time.of("ns")
        assert 0.97 < known < 1.001, (one.region, one.rule)


def test_planted_waits_are_named_with_their_line_and_their_time() -> None:
    """Five steady steps of six, in milliseconds: what the program itself measured, without the first step."""
    found = step_of(read_timeline(recording("lines-*-waits")))
    assert found.idle is not None
    idle = {(line.line, line.cause): line.time_ns / 1e6 for line in found.idle.lines}
    assert idle[LINE_OF["sleep"], "python"] == pytest.approx(90.95 - 15.16, rel=0.02)
    assert idle[LINE_OF["lock"], "python"] == pytest.approx(120.7 - 20.17, rel=0.02)
    assert idle[LINE_OF["malloc"], "alloc"] == pytest.approx(22.1 - 0.70, rel=0.02)
    in_item = sum(time for (line, _), time in idle.items() if line in (LINE_OF["item"], LINE_OF["item"] - 1))
    assert in_item == pytest.approx(72.55 - 32.28 - 5 * 0.63, rel=0.05)  # the GPU works for 0.63 ms of each
    assert (LINE_OF["item"], "sync") in idle
    # The line of the data set that the loader waits for.
    assert idle[LINE_OF["loader"] - 28, "python"] == pytest.approx(75.65 - 13.08, rel=0.05)


def test_a_stack_as_nsys_2025_3_1_stored_it(export: Path) -> None:
    """The upper half of a line is not always 0, and names are escaped."""
    stored = (
        "0100000000000000020000000100000058000000000000002000000000000000010000000000000001000000030000000904000000000000"
        "670000000000000086000000706572662a000000000000006700000000000000ce0000005f6c6c6d17000000000000006700000000000000"
        "d200000074732e70"
    )
    with_marks(export, [])
    with closing(sqlite3.connect(export)) as db:
        names = {1033: "waits", 42: "main", 23: "&lt;module&gt;", 103: "/home/me/lines.py"}
        db.executemany("INSERT OR REPLACE INTO StringIds VALUES (?, ?)", [*names.items()])
        for at in (MS, 2 * MS):
            row = (at, MAIN_THREAD, bytes.fromhex(stored))
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, NULL, ?, NULL, 0, ?)", row)
        db.commit()
    timeline = read_timeline(export)
    assert {timeline.strings[place] for place in timeline.code.place.tolist()} == {"/home/me/lines.py(134): waits"}


# -- in a PyTorch trace ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dims", "shape"),
    [
        ("aten::mm", [[512, 1024], [1024, 3072]], "512×3072×1024"),
        ("aten::addmm", [[3072], [512, 1024], [1024, 3072]], "512×3072×1024"),
        ("aten::bmm", [[16, 128, 64], [16, 64, 256]], "16×128×256×64"),
        ("aten::mm", [[512, 1024]], ""),
        ("aten::mm", [[512, "x"], [1024, 3072]], ""),
        ("aten::relu", [[512, 1024], [1024, 3072]], ""),
    ],
)
def test_the_shape_of_a_product(name: str, dims: Any, shape: str) -> None:
    assert product_shape(name, from_text(as_text([], dims))) == shape


def test_a_kernel_of_torch_compile_says_what_it_is_made_of() -> None:
    assert fused_operators("triton_poi_fused_add_gelu_3") == "fused add_gelu"
    assert fused_operators("triton_red_fused__softmax__to_copy_12") == "fused _softmax__to_copy"
    assert not fused_operators("nvjet_sm90_tst_64x8")


def kineto(tmp_path: Path, *events: dict[str, Any]) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}), encoding="utf-8")
    return path


def slice_of(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


def test_functions_and_operators_of_a_trace_with_stacks(tmp_path: Path) -> None:
    """The innermost function that is the program's own, the outermost operator, the shape of the product inside."""
    path = kineto(
        tmp_path,
        slice_of("user_annotation", "step", 0, 1000),
        slice_of("python_function", "train.py(5): main", 0, 1000),
        slice_of("python_function", "model.py(20): forward", 100, 400),
        slice_of("python_function", "torch/nn/modules/linear.py(120): forward", 120, 300),
        slice_of("cpu_op", "aten::linear", 150, 200),
        slice_of("cpu_op", "aten::mm", 160, 150, **{"Input Dims": [[8, 16], [16, 32]]}),
        slice_of("cuda_runtime", "cudaLaunchKernel", 200, 5, correlation=1),
        slice_of("kernel", "gemm", 300, 50, device=0, stream=7, correlation=1, grid=[1, 1, 1], block=[32, 1, 1]),
        slice_of("cpu_op", "aten::add", 600, 50),
        slice_of("cuda_runtime", "cudaLaunchKernel", 620, 5, correlation=2),
        slice_of("kernel", "add", 700, 50, device=0, stream=7, correlation=2, grid=[1, 1, 1], block=[32, 1, 1]),
    )
    found = step_of(read_timeline(path))
    lines = {f"{line.file}:{line.line}": line for line in found.lines}
    assert lines["model.py:20"].operators == ["aten::linear 8×32×16"]
    assert lines["train.py:5"].operators == ["aten::add"]
    assert found.lines_are_functions
    assert Counter(source.operator for source in found.sources) == {"aten::linear 8×32×16": 1, "aten::add": 1}
    assert all(line.called_from is None for line in found.lines)


def test_a_model_of_a_library_in_a_trace_has_the_function_that_leads_there(tmp_path: Path) -> None:
    path = kineto(
        tmp_path,
        slice_of("user_annotation", "step", 0, 1000),
        slice_of("python_function", "train.py(5): main", 0, 1000),
        slice_of("python_function", "torch/nn/modules/module.py(9): _call_impl", 90, 420),
        slice_of("python_function", "transformers/models/llama/modeling_llama.py(20): forward", 100, 400),
        slice_of("cuda_runtime", "cudaLaunchKernel", 200, 5, correlation=1),
        slice_of("kernel", "gemm", 300, 50, device=0, stream=7, correlation=1, grid=[1, 1, 1], block=[32, 1, 1]),
    )
    found = {line.line: line.called_from for line in step_of(read_timeline(path)).lines}
    assert found[5] is None
    assert found[20] is not None
    assert (found[20].file, found[20].line) == ("train.py", 5)


@pytest.mark.process
def test_a_shared_run_names_files_without_folders_and_quotes_no_source(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, source = tmp_path / "run", tmp_path / "client"
    (folder / "nsys").mkdir(parents=True)
    source.mkdir()
    (source / "train.py").write_text("x = 1\nlogits = model(prompt_of_our_client)\n", encoding="utf-8")
    line = f"llm-perf:line 1 {source}/train.py(2): step"
    stack = (("step", "/home/me/train.py", 30),)
    samples = [(at, stack) for at in range(11 * MS + 500_000, 16 * MS, MS)]
    with_marks(export, [(0, line), (500, "llm-perf:1"), (8 * MS, "llm-perf:0")], samples)
    export.rename(folder / "nsys/run.sqlite")
    publish(with_source(build_from([str(folder)], ReportOptions(), quiet=True)), folder)
    written = (folder / "report.json").read_text(encoding="utf-8") + (folder / "report.html").read_text(
        encoding="utf-8"
    )
    assert written.count("prompt_of_our_client") >= 2
    assert main(["scrub", "run", "--out", "shared"]) == 0
    for name in ("report.json", "report.html"):
        shared = (tmp_path / "shared" / name).read_text(encoding="utf-8")
        assert "train.py" in shared
        assert "prompt_of_our_client" not in shared
        assert str(source) not in shared
    json.loads((tmp_path / "shared" / "report.json").read_text(encoding="utf-8"))
