"""The profiler is on around the chosen ranges and nowhere else, and a program may be ended once they have been.

There is no GPU here: an object with the two functions of the CUDA runtime stands in for it, and the ranges are
those of a real model under the real annotation, or a program's own through the real nvtx package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Protocol

import pytest

from forks import Forks
from llm_perf_opt.inject import CaptureWindows, environment, read_log, under_ncu
from llm_perf_opt.inject.environment import INJECTED

pytestmark = [
    pytest.mark.process,
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'"),
]

PREFILL, STEP = ("LLM", "prefill"), ("LLM", "decode_step")

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


class Run(Protocol):
    def __call__(
        self,
        code: str,
        windows: CaptureWindows,
        folder: Path,
        answer: str = "0",
        mode: str = "stages",
        **variables: str,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run(forks: Forks) -> Run:
    """Runs a program with capture windows."""

    def run_one(
        code: str, windows: CaptureWindows, folder: Path, answer: str = "0", mode: str = "stages", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        added = under_ncu(environment(mode, ranges=True), windows=True)
        added |= windows.environment(folder / "windows.json", folder / "log")
        added |= {"LLM_PERF_ANNOTATE_SINK": str(folder / "sink"), **variables}
        return forks.run(PROGRAM.replace("ANSWER", answer) + code, {**os.environ, **added}, folder)

    return run_one


def test_the_profiler_is_on_in_the_windows_only(run: Run, tmp_path: Path) -> None:
    ended = run("generate()", CaptureWindows({PREFILL: (1,), STEP: (2, 8)}), tmp_path)
    assert ended.stdout.split() == ["on", "5", "off", "1", "on", "1", "off", *"11111", "on", "1", "off", "end"]
    assert ended.returncode == 0
    assert ended.stderr == ""
    log = read_log(tmp_path / "log")
    assert (log.windows, log.ended_before, log.troubles, log.unwatched) == (3, "", [], [])


@pytest.mark.parametrize("mode", ["off", "stages"])
def test_single_modules_can_be_windows_and_pauses_and_the_innermost_decides(
    run: Run, tmp_path: Path, mode: str
) -> None:
    """A window in a hole in a window, of modules that nobody annotated; nothing of that is recorded under ncu."""
    code = """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Layer(), Layer()
    def forward(self, tokens):
        self.one(tokens)
        self.two(tokens)

class Most(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner = Layer(), Outer()
    def forward(self, tokens):
        self.first(tokens)
        self.inner(tokens)
        print("after")

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.most = Most()
    def forward(self, tokens):
        self.most(tokens)

whole = Whole()
for length in (3, 4):
    whole(torch.zeros(1, length, dtype=torch.long))
"""
    named = {name: ("", f"llm-perf:most{name}") for name in ("", ".inner", ".inner.two")}
    windows, pauses = {named[""]: (2,), named[".inner.two"]: (2,)}, {named[".inner"]: (2,)}
    ended = run(code, CaptureWindows(windows, pauses=pauses), tmp_path, mode=mode)
    assert ended.stderr == ""
    first, second = [*"333", "after"], ["on", "4", "off", "4", "on", "4", "off", "on", "after", "off"]
    assert ended.stdout.split() == first + second
    assert read_log(tmp_path / "log").windows == 2
    sink = tmp_path / "sink"
    assert "llm-perf" not in (sink.read_text() if sink.exists() else "")


def test_a_program_is_ended_when_all_samples_are_in_and_may_clean_up(run: Run, tmp_path: Path) -> None:
    code = """
import atexit; atexit.register(print, "atexit")
try: generate()
finally: print("finally")
"""
    ended = run(code, CaptureWindows({PREFILL: (1,), STEP: (2,)}, stop=True), tmp_path)
    assert ended.stdout.split() == ["on", "5", "off", "1", "on", "1", "off", "finally", "atexit"]
    assert ended.returncode == 0
    assert ended.stderr == ""
    noted = read_log(tmp_path / "log")
    assert noted.ended_before == "decode_step 3"
    assert [counts[STEP] for counts in noted.ranges.values()] == [2], "the range that did not open is not counted"
    pushed = [json.loads(line)["event"] for line in (tmp_path / "sink").read_text().splitlines()]
    assert pushed.count("push") == pushed.count("pop") == 3, "no range stays open"


def test_a_program_can_be_ended_with_no_profiler_to_switch(run: Run, tmp_path: Path) -> None:
    ended = run("generate()", CaptureWindows({STEP: (2,)}, stop=True, switch=False), tmp_path)
    assert ended.returncode == 0
    assert not {"on", "off", "end"} & set(ended.stdout.split())
    assert read_log(tmp_path / "log").ended_before == "decode_step 3"


def test_a_window_that_never_comes_ends_nothing(run: Run, tmp_path: Path) -> None:
    ended = run("generate()", CaptureWindows({PREFILL: (1,), STEP: (99,)}, stop=True), tmp_path)
    assert ended.stdout.split()[-1] == "end"
    assert read_log(tmp_path / "log").windows == 0, "not all windows have been"


def test_a_program_that_will_not_end_is_left_alone(run: Run, tmp_path: Path) -> None:
    code = """
for _ in range(3):
    try: generate()
    except BaseException as error: print(type(error).__name__)
"""
    ended = run(code, CaptureWindows({PREFILL: (1,)}, stop=True), tmp_path)
    assert ended.stdout.split().count("SystemExit") == 2
    assert ended.stdout.split()[-1] == "end"
    assert "catches SystemExit" in ended.stderr
    assert read_log(tmp_path / "log").ended_before == "", "nobody shall read that it was ended"


def test_a_program_whose_model_runs_in_a_thread_ends_too(run: Run, tmp_path: Path) -> None:
    code = """
worker = threading.Thread(target=generate, daemon=True)
worker.start()
threading.Event().wait(20)
print("deadlocked")
"""
    ended = run(code, CaptureWindows({STEP: (1,)}, stop=True), tmp_path)
    assert "deadlocked" not in ended.stdout
    assert read_log(tmp_path / "log").ended_before == "decode_step 2"


@pytest.mark.parametrize(
    ("answer", "told"), [("2", "answered with error 2"), ("1 / 0", "ZeroDivisionError")], ids=["refused", "broken"]
)
def test_a_runtime_that_refuses_leaves_the_program_alone_and_is_told(
    run: Run, tmp_path: Path, answer: str, told: str
) -> None:
    ended = run("generate()", CaptureWindows({PREFILL: (1,)}, stop=True), tmp_path, answer)
    assert ended.returncode == 0
    assert ended.stdout.split()[-1] == "end"
    (trouble,) = read_log(tmp_path / "log").unwatched
    assert told in trouble


@pytest.mark.parametrize("content", ["[]", '{"windows": [["", "prefill", ["x"]]], "pauses": [], "stop": true}'])
def test_a_damaged_file_opens_no_window_and_is_reported(run: Run, tmp_path: Path, content: str) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(content)
    ended = run("generate()", CaptureWindows({}), tmp_path, LLM_PERF_WINDOWS=str(damaged))
    assert "on" not in ended.stdout.split()
    assert ended.returncode == 0
    assert len(read_log(tmp_path / "log").unwatched) == 1


# A program with ranges of its own, in all the ways the nvtx package has.
OWN_RANGES = """
import nvtx

def layer(name):
    with nvtx.annotate("layer", domain="LLM"): print(name)

@nvtx.annotate(domain="LLM")
def unnamed(): yield  # no tool is attached, so nvtx leaves a function as it is, and so must we
assert unnamed.__code__.co_flags & 0x20

for step in range(3):
    with nvtx.annotate("step", color="red", domain="LLM"):
        layer("first")
        try:
            with nvtx.annotate("fails"): raise ValueError
        except ValueError: pass
        layer("second")
    nvtx.push_range("tail", domain="LLM"); print("tail"); nvtx.pop_range(domain="LLM")
    nvtx.push_range("tail", "blue", "LLM"); nvtx.pop_range("LLM")
nvtx.pop_range()
"""


@pytest.mark.skipif(find_spec("nvtx") is None, reason="needs nvtx")
def test_ranges_of_the_program_itself_are_counted_and_gated_without_annotation(run: Run, tmp_path: Path) -> None:
    windows = {("LLM", "layer"): (2, 5), ("LLM", "tail"): (3,)}
    ended = run(OWN_RANGES, CaptureWindows(windows), tmp_path, mode="off")
    assert ended.stderr == ""
    steps = ["first", "on", "second", "off", "tail", "first", "second", "on", "tail", "off", "on", "first", "off"]
    assert ended.stdout.split() == [*steps, "second", "tail"]
    log = read_log(tmp_path / "log")
    (ranges,) = log.ranges.values()
    own = {("LLM", "step"): 3, ("LLM", "layer"): 6, ("LLM", "tail"): 6, ("", "fails"): 3}
    assert ranges == own
    assert (log.windows, log.stages, log.processes) == (3, {}, 0)


PAUSES = """
import nvtx
for step in range(4):
    with nvtx.annotate("step", domain="LLM"):
        print(step)
        for layer in range(3):
            with nvtx.annotate(f"layer{layer}", domain="LLM"): print(f"layer{layer}")
        print("head")
"""


@pytest.mark.skipif(find_spec("nvtx") is None, reason="needs nvtx")
def test_the_profiler_is_off_in_the_pauses_of_a_window(run: Run, tmp_path: Path) -> None:
    """Of two layers that are left out one after the other, none is profiled; pauses outside of windows are nothing."""
    windows = CaptureWindows({("LLM", "step"): (2,)}, pauses={("LLM", "layer1"): (1, 2), ("LLM", "layer2"): (2,)})
    ended = run(PAUSES, windows, tmp_path, mode="off")
    plain = ["layer0", "layer1", "layer2", "head"]
    chosen = ["on", "1", "layer0", "off", "layer1", "on", "off", "layer2", "on", "head", "off"]
    assert ended.stdout.split() == ["0", *plain, *chosen, "2", *plain, "3", *plain]
    assert ended.stderr == ""
    (told,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"switches"' in line]
    assert (told["windows"], told["switches"]) == (1, 6)


@pytest.mark.skipif(find_spec("nvtx") is None, reason="needs nvtx")
def test_a_child_that_cannot_use_the_gpu_is_left_alone(run: Run, tmp_path: Path) -> None:
    """It was forked from a process that does, and opens ranges of the same names."""
    code = """
import multiprocessing, nvtx
def work():
    with nvtx.annotate("step", domain="LLM"): print("step", flush=True)
child = multiprocessing.get_context("fork").Process(target=work)
torch.cuda._is_in_bad_fork = lambda: True
child.start(); child.join()
torch.cuda._is_in_bad_fork = lambda: False
work()
"""
    ended = run(code, CaptureWindows({("LLM", "step"): (1,)}), tmp_path, mode="off")
    assert ended.stderr == ""
    assert ended.stdout.split() == ["step", "on", "step", "off"]


def test_ranges_of_torch_are_counted_as_they_are_pushed_and_popped(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's functions in C are only in its CUDA builds: others with the same names stand in for them."""
    monkeypatch.syspath_prepend(str(INJECTED))
    from _llm_perf_annotate import hooks, seen_ranges  # type: ignore[import-not-found]

    seen: list[object] = []
    calls: list[object] = []
    fresh = seen_ranges.SeenRanges()
    fresh.listeners.append(lambda *told: seen.append(told))
    monkeypatch.setattr(hooks, "ranges_seen", fresh)
    nvtx = SimpleNamespace(rangePushA=lambda name: calls.append(name) or 7, rangePop=lambda: calls.append("pop") or 6)
    hooks.into_torch(SimpleNamespace(_C=SimpleNamespace(_nvtx=nvtx)))
    assert [nvtx.rangePushA("a"), nvtx.rangePushA("a"), nvtx.rangePop(), nvtx.rangePop(), nvtx.rangePop()] == [
        *(7, 7),
        *(6, 6, 6),
    ]
    assert calls == ["a", "a", "pop", "pop", "pop"]
    assert seen == [("", "a", 1, True), ("", "a", 2, True), ("", "a", 2, False), ("", "a", 1, False)]
    hooks.into_torch(SimpleNamespace(_C=SimpleNamespace()))  # a build without NVTX


@pytest.mark.parametrize("has_package", [True, False], ids=["a tool that sees domains", "nothing but torch"])
def test_ranges_of_the_annotation_are_of_domain_llm(monkeypatch: pytest.MonkeyPatch, has_package: bool) -> None:
    """No tool is attached here: objects with the same methods stand in for torch and for nvtx under one."""
    monkeypatch.syspath_prepend(str(INJECTED))
    from _llm_perf_annotate import hooks, ranges, seen_ranges

    calls: list[str] = []
    fresh = seen_ranges.SeenRanges()
    monkeypatch.setattr(hooks, "ranges_seen", fresh)
    monkeypatch.setattr(ranges, "ranges_seen", fresh)
    monkeypatch.setenv("LLM_PERF_RANGES", "1")
    torch = SimpleNamespace(_C=SimpleNamespace(_nvtx=SimpleNamespace(rangePushA=calls.append, rangePop=list)))
    hooks.into_torch(torch)
    handle = {"handle": 1} if has_package else {}  # nvtx's stand-in for a domain that nobody sees has none
    domain = SimpleNamespace(
        get_event_attributes=lambda message: f"attributes of {message}",
        push_range=calls.append,
        pop_range=list,
        **handle,
    )
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=lambda name: domain))
    chosen = ranges.choose(torch, ranges.DOMAIN)
    assert chosen is not None
    _, push, pop = chosen
    for _ in range(2):
        push("prefill")
        pop()
    assert calls == ["attributes of prefill" if has_package else "LLM@prefill"] * 2
    # The hooks of the nvtx package count its domains; a name that holds the domain is counted as what it stands for.
    assert fresh.counts == ({} if has_package else {("LLM", "prefill"): 2})


def test_ranges_of_a_domain_object_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvtx gives such objects only where a tool is attached: a class with the same methods stands in for it."""
    monkeypatch.syspath_prepend(str(INJECTED))
    from _llm_perf_annotate import hooks, seen_ranges  # type: ignore[import-not-found]

    class Domain:
        name = "LLM"
        calls: ClassVar[list[object]] = []

        def push_range(self, attributes: object = None, *, message: str | None = None) -> None:
            self.calls.append((attributes, message))

        def pop_range(self) -> None:
            self.calls.append("pop")

    fresh = seen_ranges.SeenRanges()
    monkeypatch.setattr(hooks, "ranges_seen", fresh)
    hooks._into_domain(Domain)
    step = SimpleNamespace(message=SimpleNamespace(string="step"))
    Domain().push_range(step)
    Domain().push_range(message="named")
    Domain().push_range(SimpleNamespace(message=None))
    for _ in range(3):
        Domain().pop_range()
    assert fresh.counts == {("LLM", "step"): 1, ("LLM", "named"): 1, ("LLM", ""): 1}
    assert Domain.calls[:2] == [(step, None), (None, "named")]
    assert Domain.calls[3:] == ["pop"] * 3


def test_a_decorated_function_is_counted_where_nvtx_wraps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    from _llm_perf_annotate import hooks, seen_ranges  # type: ignore[import-not-found]

    class annotate:
        def __init__(self, message: str | None = None, color: str | None = None, domain: str | None = None) -> None:
            self.enabled = message != "off"

        def __enter__(self) -> annotate:
            return self

        def __exit__(self, *error: object) -> bool:
            return False

        def __call__(self, function: Callable[[int], int]) -> Callable[[int], int]:
            return (lambda value: function(value) + 100) if self.enabled else function

    fresh = seen_ranges.SeenRanges()
    monkeypatch.setattr(hooks, "ranges_seen", fresh)
    early = annotate("early")
    hooks._into_annotate(annotate, object())

    def double(value: int) -> int:
        return value * 2

    assert annotate("named", domain="LLM")(double)(2) == annotate()(double)(2) == 104
    assert annotate("off")(double) is double
    with early, annotate(["no", "text"]):  # type: ignore[arg-type]
        pass
    assert fresh.counts == {("LLM", "named"): 1, ("", "double"): 1}


def test_names_without_end_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    from _llm_perf_annotate import seen_ranges

    monkeypatch.setattr(seen_ranges, "_MOST_NAMES", 3)
    ranges = seen_ranges.SeenRanges()
    for name in ("a", "b", "c", "d", "a"):
        ranges.begin("", name)
    assert ranges.counts == {("", "a"): 2, ("", "b"): 1, ("", "c"): 1}
