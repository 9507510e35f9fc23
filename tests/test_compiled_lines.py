"""Kernels of torch.compile: the line of the program that each was made from, and its operators."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llm_perf_opt.inject.environment import INJECTED, OWN_CODE
from llm_perf_opt.metrics.source_owner import is_own
from llm_perf_opt.regions.merge import merge_timelines
from synthetic import MAIN_THREAD, make_export
from test_lines import LOOP, MS, read_timeline, step_of, with_marks

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate import compiled, lines, log

# -- in a program that torch compiles ----------------------------------------------------------------

_MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 64)
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x):
        h = self.up(x)  #: up
        g = torch.nn.functional.gelu(h)  #: gelu
        y = self.norm(g * 2)  #: norm
        w = y @ y.t()  #: product
        return w.softmax(-1)  #: softmax

@torch.compile
def scaled(x):
    return (x + 1).relu().sum(0)  #: scaled

@torch.compile
def other(x):
    return (x + 1).relu().sum(1)  #: other

net = torch.compile(Net())

def step(x):
    net(x).sum().backward()  #: step
    scaled(x)
    other(x)
    scaled(x)
"""

# Runs the model, and says of every launch of its compiled code in which line it is by the marks. The code is what torch
# writes for Triton; the kernels themselves, which only a GPU could run, do nothing but that.
_OBSERVED = """
import importlib.util, json, sys, threading, types
sys.path[:0] = [sys.argv[1], sys.argv[3]]
import torch
from _llm_perf_annotate import lines

now, places, made, seen = {}, {}, {}, []

def mark(text):
    head, _, rest = text.removeprefix("llm-perf:").partition(" ")
    number, _, what = rest.partition(" ")
    if head in ("line", "made"):
        (places if head == "line" else made)[number] = what
    else:
        now[threading.get_ident()] = head

def launch(name):
    number = now.get(threading.get_ident(), "")
    seen.append([name, places.get(number, ""), made.get(number, "")])

rule = json.load(open(sys.argv[2]))
rule["library"].append("observed.py$")
found = lines.Lines(lines.OwnCode(rule), mark)
lines.follow_compiled(found)

import torch._inductor.config, torch.utils._triton
from torch._inductor import async_compile, codecache, select_algorithm
torch._inductor.config.cpu_backend = "triton"
torch.utils._triton.triton_hash_with_backend = lambda: "none"

class Kernel:
    def __init__(self, name):
        self.name = name
    def run(self, *args, **kwargs):
        launch(self.name)

async_compile.AsyncCompile.triton = lambda self, name, *args, **kwargs: Kernel(name)
kernels = select_algorithm.extern_kernels
for name in ("mm", "addmm"):
    def extern(*args, _name=name, _call=getattr(kernels, name), **kwargs):
        launch(_name)
        return _call(*args, **kwargs)
    setattr(kernels, name, extern)

load = codecache._reload_python_module

def with_triton(*args, **kwargs):
    absent = {name: types.ModuleType(name) for name in ("triton", "triton.language")}
    if importlib.util.find_spec("triton") is not None:
        absent = {}
    for name, module in absent.items():
        sys.modules[name] = module
    try:
        return load(*args, **kwargs)
    finally:
        for name in absent:
            del sys.modules[name]

codecache._reload_python_module = with_triton

import model
x = torch.randn(32, 64)
model.step(x)
seen.clear()
lines.start(found)
model.step(x)
found.stop()
from torch._dynamo.utils import counters
print(json.dumps([seen, counters["inductor"]["fxgraph_cache_hit"]]))
"""

Launches = list[tuple[str, str, str]]  # kernel, tag of the line, operators


def launches_of(folder: Path) -> tuple[Launches, int]:
    """What the program launches in one step, and how many of its graphs came from the cache."""
    observed, model = folder / "observed.py", folder / "model.py"
    observed.write_text(_OBSERVED, encoding="utf-8")
    arguments = [str(observed), str(INJECTED), str(OWN_CODE), str(folder)]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    seen, hits = json.loads(done.stdout.splitlines()[-1])
    text = model.read_text(encoding="utf-8").splitlines()
    found = []
    for kernel, place, operators in seen:
        file, _, line = place.partition("): ")[0].rpartition("(")
        assert file == str(model)
        found.append((kernel, text[int(line) - 1].rpartition("#: ")[2], operators))
    return found, hits


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_every_launch_of_compiled_code_is_in_the_line_it_was_made_from_also_from_the_cache(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(_MODEL, encoding="utf-8")
    found, hits = launches_of(tmp_path)
    assert hits == 0
    forward, backward, functions = found[:4], found[4:-3], found[-3:]
    assert [(kernel, tag) for kernel, tag, _ in forward] == [
        ("addmm", "up"),
        ("triton_per_fused_gelu_mul_native_layer_norm_0", "norm"),  # the last of the lines it was fused from
        ("mm", "product"),
        ("triton_per_fused__softmax_1", "softmax"),
    ]
    assert forward[1][2] == "aten.gelu, aten.mul, aten.native_layer_norm"
    assert [tag for kernel, tag, _ in backward if kernel in ("mm", "addmm")] == ["product", "product", "up"]
    assert backward[0][1:] == ("softmax", "aten._softmax_backward_data")
    assert {tag for _, tag, _ in backward} == {"softmax", "product", "gelu", "norm", "up"}
    # Two graphs have a kernel of the same name.
    assert len({kernel for kernel, _, _ in functions}) == 1
    assert [tag for _, tag, _ in functions] == ["scaled", "other", "scaled"]

    again, hits = launches_of(tmp_path)
    assert hits == 4
    assert again == found

    # Lines have moved since: what the cache says of them is no longer true, and the line that calls is what is left.
    model.write_text(_MODEL.replace("import torch\n", "import torch\n\n", 1), encoding="utf-8")
    moved, hits = launches_of(tmp_path)
    assert hits == 4
    assert [kernel for kernel, _, _ in moved] == [kernel for kernel, _, _ in found]
    assert not [operators for _, _, operators in moved if operators]
    assert not {tag for _, tag, _ in moved} & {"up", "gelu", "norm", "product", "softmax", "scaled", "other"}


# -- what a module says ------------------------------------------------------------------------------

_MODULE = """
def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    buf0 = empty_strided_cuda((32, 64), (64, 1), torch.float32)
    # Topologically Sorted Source Nodes: [h], Original ATen: [aten.addmm]
    extern_kernels.addmm(arg0_1, arg1_1, out=buf0)
    del arg0_1
    buf1 = buf0; del buf0  # reuse
    # Source Nodes: [y], Original ATen: [aten.mul, aten.relu]
    stream0 = get_raw_stream(0)
    triton_poi_fused_mul_relu_0.run(buf1, 512, stream=stream0)
    triton_poi_fused_1.run(buf1, 512, stream=stream0)
    # Topologically Sorted Source Nodes: [z], Original ATen: [aten.sub]
    triton_poi_fused_sub_2.run(buf1, 512, stream=stream0)
    # Topologically Sorted Source Nodes: [q], Original ATen: [aten.sub]
    triton_poi_fused_sub_3.run(buf1, 512, stream=stream0)
    return (buf1, )
"""
_TRACE = '  File "{file}", line {line}, in step\n    {text}\n      ^^^\n'


def module_of(path: Path, source: str) -> tuple[ModuleType, str]:
    path.write_text(source, encoding="utf-8")
    module = ModuleType("made")
    exec(compile(source, str(path), "exec"), vars(module))
    return module, str(path)


def states(tmp_path: Path, source: str, stretches: list[tuple[int, str]]) -> dict[str, Any]:
    """What launches come from: of each kernel its place and operators, None where it is not known."""
    found: list[Any] = []
    module, path = module_of(tmp_path / "made.py", source)

    class PyCodeCache:
        @classmethod
        def load_by_key_path(cls, key: str, path: str, linemap: Any = None, attrs: Any = None) -> ModuleType:
            return module

    holder = ModuleType("codecache")
    vars(holder)["PyCodeCache"] = PyCodeCache
    disowned: list[str] = []
    compiled.into_codecache(holder, is_own, disowned.append, lambda _code, made: found.append(made))
    assert PyCodeCache.load_by_key_path("key", path, stretches) is module
    assert disowned == [path]
    text = source.split("\n")
    kept = found[0].states if found else {}
    return {
        text[line - 1].strip().partition("(")[0]: state
        for line, state in kept.items()
        if ".run(" in text[line - 1] or "extern" in text[line - 1]
    }


def test_a_launch_has_the_line_of_its_stretch_and_none_where_that_is_not_certain(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("h = up(x)\ny = h.relu() * 2\nz = 1\n", encoding="utf-8")
    inside = _TRACE.format(file="/x/site-packages/torch/nn/modules/linear.py", line=5, text="return F.linear()")
    up, mul, last = (
        _TRACE.format(file=program, line=line, text=text)
        for line, text in ((1, "h = up(x)"), (2, "y = h.relu() * 2"), (3, "z = 1"))
    )
    found = states(tmp_path, _MODULE, [(3, up + inside), (9, mul), (13, ""), (14, last)])
    assert found["extern_kernels.addmm"] == compiled.Origin(f"{program}(1): step", "aten.addmm")
    assert found["triton_poi_fused_mul_relu_0.run"] == compiled.Origin(f"{program}(2): step", "aten.mul, aten.relu")
    assert found["triton_poi_fused_1.run"] is None  # no stack trace
    # Two kernels in one stretch, of which one may be from elsewhere.
    assert found["triton_poi_fused_sub_2.run"] is found["triton_poi_fused_sub_3.run"] is None


def test_a_stretch_of_thousands_of_kernels_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits meanwhile."""
    tried: list[str] = []
    comment = compiled._COMMENT

    class Counting:
        def match(self, line: str) -> Any:
            tried.append(line)
            return comment.match(line)

    monkeypatch.setattr(compiled, "_COMMENT", Counting())
    program = tmp_path / "program.py"
    program.write_text("h = up(x)\n", encoding="utf-8")
    trace = _TRACE.format(file=program, line=1, text="h = up(x)")
    kernels = [
        f"    # Topologically Sorted Source Nodes: [mul_{n}], Original ATen: [aten.mul]\n    made_{n}.run(x)\n"
        for n in range(500)
    ]
    found = states(tmp_path, "def call(x):\n" + "".join(kernels), [(2, trace)])
    assert set(found.values()) == {None}
    assert len(found) == 500
    assert len(tried) <= 1000


def test_a_line_that_is_no_longer_what_it_was_is_not_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("h = up(x) + 1\n", encoding="utf-8")
    trace = _TRACE.format(file=program, line=1, text="h = up(x)")
    assert compiled.place_of(trace, is_own) == ""
    program.write_text("h = up(x)\n", encoding="utf-8")
    compiled.linecache.checkcache()
    assert compiled.place_of(trace, is_own) == f"{program}(1): step"


def test_a_line_map_that_does_not_fit_is_not_read(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("h = up(x)\n", encoding="utf-8")
    trace = _TRACE.format(file=program, line=1, text="h = up(x)")
    tuned = f'r"""\nCompile-time auto-tuning block: \n"""\n{_MODULE}'
    assert states(tmp_path, tuned, [(3, trace)]) == {}


def test_what_torch_no_longer_has_is_said_and_what_fails_never_reaches_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(log, "_reported", set())
    monkeypatch.setattr(log, "note", lambda _event, **facts: noted.append(facts["message"]))
    compiled.into_codecache(ModuleType("codecache"), is_own, print, print)
    assert "cannot be watched" in noted[0]
    assert states(tmp_path, _MODULE, [("no line", "")]) == {}  # type: ignore[list-item]
    assert noted[1].startswith("reading which line a compiled kernel comes from failed and is left out: ValueError")


def test_a_mark_that_fails_at_the_end_of_compiled_code_never_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In autograd's thread no code of the program is above it."""
    noted: list[str] = []
    monkeypatch.setattr(log, "_reported", set())
    monkeypatch.setattr(log, "note", lambda _event, **facts: noted.append(facts["message"]))

    def fails(_: str) -> None:
        raise OSError

    found = lines.Lines(lines.OwnCode(json.loads(OWN_CODE.read_text(encoding="utf-8"))), fails)
    code = compile("x = 1\n", "made.py", "exec")
    found.add_generated(code, compiled.Generated({1: compiled.Origin("program.py(1): step", "aten.mul")}))
    found.on, found._last = True, "llm-perf:1"
    found.leave(None, code)
    assert not found.on
    assert noted[0].startswith("marking the lines of the program failed and is left out: OSError")


# -- in a recording ----------------------------------------------------------------------------------

KERNEL = "llm-perf:line 2 /home/me/model.py(33): forward"
MADE = "llm-perf:made 2 aten.mul, aten.relu"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two steps, each with a kernel of compiled code and one that line 10 launches itself."""
    ranges = [("step", at * 10 * MS, at * 10 * MS + 9 * MS) for at in range(2)]
    kernels = [
        (name, at * 10 * MS + start, at * 10 * MS + start + 1_000, at * 10 * MS + start + MS)
        for at in range(2)
        for name, start in (("triton_poi_fused_mul_relu_0", 1 * MS), ("plain", 6 * MS))
    ]
    path = make_export(tmp_path / "run.sqlite", ranges, kernels)
    marks = [(0, LOOP), (0, KERNEL), (0, MADE)]
    for at in range(2):
        marks += [(at * 10 * MS + 1_000, "llm-perf:2"), (at * 10 * MS + 4 * MS, "llm-perf:1")]
    return with_marks(path, marks)


def test_a_compiled_kernel_is_in_its_line_with_its_operators(export: Path) -> None:
    timeline = read_timeline(export)
    lines = {line.line: line for line in step_of(timeline).lines}
    assert lines[33].kernels == ["triton_poi_fused_mul_relu_0"]
    assert lines[33].operators == ["aten.mul, aten.relu"]
    assert lines[33].calls == lines[10].calls == 2
    assert lines[10].operators == []


def test_operators_of_compiled_code_end_with_it_and_are_merged(export: Path) -> None:
    timeline = read_timeline(export)
    spans = list(zip(timeline.compiled.start.tolist(), timeline.compiled.end.tolist(), strict=True))
    assert spans == [(at * 10 * MS + 1_000, at * 10 * MS + 4 * MS) for at in range(2)]
    both = merge_timelines([timeline, read_timeline(export)])
    assert {both.strings[number] for number in both.compiled.place.tolist()} == {"aten.mul, aten.relu"}
    assert len(both.compiled) == 4
    assert set(both.compiled.process.tolist()) == {0, 1}


def test_another_thread_does_not_launch_what_compiled_code_runs_meanwhile(export: Path) -> None:
    other = MAIN_THREAD + 1
    with closing(sqlite3.connect(export)) as db:
        db.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = ?, end = ?, globalTid = ? WHERE correlationId = 2",
            (2 * MS, 2 * MS + 1, other),
        )
        db.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, 'llm-perf:1', ?, NULL, 0, NULL)", (MS, other))
        db.commit()
    lines = {line.line: line for line in step_of(read_timeline(export)).lines}
    assert lines[10].calls == 2
    assert lines[10].operators == []
