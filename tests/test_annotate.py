"""Programs that know nothing of us are annotated, and otherwise run as ever."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest
from attrs import define

from conftest import worked_out
from forks import PROGRAMS, WITH_TRANSFORMERS, Forks
from llm_perf_opt.inject import Annotated, environment, problems, read_log, under_ncu
from llm_perf_opt.inject.environment import INJECTED

pytestmark = pytest.mark.process

TORCH = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None,
    reason="needs torch and transformers: pip install -e '.[torch]'",
)


def start(
    command: list[str], mode: str, sink: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as `llm-perf profile --annotate` would, without a profiler."""
    base = {**os.environ, **variables}
    added = environment(mode, base_env=base)
    if sink is not None:
        added |= {"LLM_PERF_ANNOTATE_SINK": str(sink), "PARTS_FILE": str(sink)}
    return subprocess.run(command, env={**base, **added}, capture_output=True, text=True, timeout=600)


def python(code: str, *options: str, mode: str = "stages", **variables: str) -> subprocess.CompletedProcess[str]:
    return start([sys.executable, *options, "-c", code], mode, **variables)


def trees(sink: Path) -> dict[str, str]:
    """The ranges of every part of a program, as in `generate(prefill decode(decode_step*3))`.

    Fails where a range is closed that is not the innermost open one, or stays open.
    """
    return trees_of([json.loads(line) for line in sink.read_text().splitlines()])


def trees_of(events: list[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    part = ""
    threads: dict[tuple[int, int], list[tuple[str, list[str]]]] = {}
    for event in events:
        if event["event"] == "part":
            part = event["name"]
            assert all(len(stack) == 1 for stack in threads.values()), f"open before {part}"
            threads.clear()
            continue
        stack = threads.setdefault((event["pid"], event["thread"]), [("", [])])
        if event["event"] == "push":
            stack.append((event["name"], []))
        else:
            name, children = stack.pop()
            assert event["name"] == name
            stack[-1][1].append(f"{name}({_runs(children)})" if children else name)
        if all(len(s) == 1 for s in threads.values()):
            found[part] = " | ".join(_runs(s[0][1]) for s in threads.values())
    assert all(len(stack) == 1 for stack in threads.values()), "open at the end"
    return found


def _runs(names: list[str]) -> str:
    runs: list[list[str]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return " ".join(run[0] if len(run) == 1 else f"{run[0]}*{len(run)}" for run in runs)


@define(frozen=True)
class Ran:
    """What a program printed, and what it wrote to the file of ranges."""

    stdout: str
    events: list[dict[str, Any]]

    @property
    def trees(self) -> dict[str, str]:
        return trees_of(self.events)


class RunOnce(Protocol):
    def __call__(self, mode: str, program: str | Path) -> Ran: ...


@pytest.fixture(scope="module")
def ran(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Programs with a model of transformers, each run once in each mode for all workers, in a fork with a fresh torch."""

    def run_it(mode: str, program: str | Path) -> Ran:
        folder = tmp_path_factory.mktemp(mode)
        sink = folder / "ranges.jsonl"
        files = {"LLM_PERF_ANNOTATE_SINK": str(sink), "PARTS_FILE": str(sink)}
        added = environment(mode) | files
        ended = forks.run(program, {**os.environ, **added}, folder, WITH_TRANSFORMERS)
        assert (ended.returncode, "llm-perf annotate" in ended.stderr) == (0, False), f"{program}: {ended.stderr}"
        lines = sink.read_text().splitlines() if sink.exists() else []
        return Ran(ended.stdout, [json.loads(line) for line in lines])

    return lambda mode, program: worked_out.value(f"ran {mode} {program}", lambda: run_it(mode, program))


def in_fork(forks: Forks, code: str, folder: Path, **added: str) -> Annotated:
    """Run code that needs torch alone; it must end well and print nothing. What its log says."""
    log = folder / "log"
    ended = forks.run(code, {**os.environ, **added, "LLM_PERF_ANNOTATE_LOG": str(log)}, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return read_log(log)


# --- generate() ---


@TORCH
def test_a_plain_script_gets_prefill_and_decode_and_the_same_tokens(tmp_path: Path, ran: RunOnce) -> None:
    plain = [sys.executable, str(PROGRAMS / "generate_plain.py")]
    sink, log = tmp_path / "plain.jsonl", tmp_path / "plain.log"
    marked = start(plain, "stages", sink, LLM_PERF_ANNOTATE_LOG=str(log))
    assert marked.returncode == 0, marked.stderr
    assert marked.stdout == ran("off", PROGRAMS / "generate_plain.py").stdout
    assert ran("off", PROGRAMS / "generate_plain.py").events == []
    assert trees(sink) == {"": "generate(prefill decode(decode_step*4))"}
    counts = {"generate": 1, "prefill": 1, "decode": 1, "decode_step": 4}
    assert read_log(log) == Annotated(processes=1, stages=counts, ended=1)


@TORCH
def test_modules_of_the_plain_script(ran: RunOnce) -> None:
    layer = "model.layers.{n}({a}input_layernorm {a}self_attn {a}post_attention_layernorm {a}mlp)"
    layers = " ".join(layer.format(n=n, a=f"model.layers.{n}.") for n in range(2))
    inside = f"model(model.embed_tokens model.rotary_emb {layers} model.norm) lm_head"
    expected = f"generate(prefill({inside}) decode(decode_step({inside})*4))"
    assert ran("modules", PROGRAMS / "generate_plain.py").trees == {"": expected}


GENERATE = "generate(prefill decode(decode_step*3))"


@TORCH
def test_ways_of_generating(ran: RunOnce) -> None:
    found = ran("stages", PROGRAMS / "generate_kinds.py").trees
    # The assistant is asked for guesses before the first call of the model and after others; how often, and how many
    # steps are saved, is a matter of luck.
    assert found.pop("assistant").startswith("generate(draft prefill(draft) decode(decode_step(draft)")
    assert found.pop("prompt lookup").startswith("generate(prefill decode(decode_step")
    assert found == {
        "batch": GENERATE,
        "one token of prompt": GENERATE,
        "one new token": "generate(prefill)",
        "beams": GENERATE,
        "pieces of prompt": GENERATE,
        "static cache": GENERATE,
        "no cache": GENERATE,
        "embeddings": GENERATE,
        "failure": "generate(prefill decode(decode_step*2))",
        "after the failure": GENERATE,
        "encoder and decoder": "generate(encoder prefill decode(decode_step*2))",
        "streamed from a thread": GENERATE,
    }


# --- programs that call the model themselves ---


@TORCH
def test_hand_written_loops(ran: RunOnce) -> None:
    assert ran("stages", PROGRAMS / "hand_loops.py").trees == {
        "loop": "prefill decode_step*3",
        "two requests": "prefill decode_step prefill decode_step",
        "pieces of prompt": "prefill*2 decode_step",
        "guessed tokens": "decode_step",
        "pieces of the prompts of two requests": "prefill*2 decode_step prefill decode_step",
        "next turn": "prefill",
        "one token of prompt": "prefill",
        "static cache used twice": "prefill decode_step prefill decode_step",
        "decoder without its head": "prefill",
        "evaluation": "evaluate",
        "evaluation of a model of one's own": "evaluate prefill",
        "an encoder": "forward",
        "threads": "prefill decode_step*3 | prefill decode_step*3",
        "a model of one's own": "prefill*2 decode_step",
        "failure": "prefill",
        "after the failure": "prefill",
        "a row of one request": "prefill decode_step",
        "a row that may be of several requests": "step*3",
        "guessed tokens on a cache that is a list": "decode_step*2",
        "no tokens": "forward",
        "compiled": "prefill decode_step",
    }


@TORCH
def test_calls_of_a_server_are_steps_unless_only_one_phase_is_possible(forks: Forks, tmp_path: Path) -> None:
    """Its scheduler may put pieces of prompts and single tokens of several requests into one call."""
    sink = tmp_path / "ranges"
    added = environment("stages", steps=True) | {"LLM_PERF_ANNOTATE_SINK": str(sink), "PARTS_FILE": str(sink)}
    ended = forks.run(PROGRAMS / "hand_loops.py", {**os.environ, **added}, tmp_path, WITH_TRANSFORMERS)
    assert ended.returncode == 0, ended.stderr
    found = trees(sink)
    assert {part: found[part] for part in ("loop", "threads", "one token of prompt")} == {
        "loop": "prefill decode_step*3",
        "threads": "prefill decode_step*3 | prefill decode_step*3",
        "one token of prompt": "prefill",
    }
    assert found["pieces of prompt"] == "prefill*2 decode_step"  # onto a cache that was empty, and held prompts alone
    assert found["pieces of the prompts of two requests"] == "prefill*2 decode_step prefill step"
    assert found["guessed tokens"] == found["next turn"] == "step"
    assert found["static cache used twice"] == "prefill decode_step step decode_step"
    assert found["a row of one request"] == "prefill decode_step"
    assert found["a row that may be of several requests"] == "step*3"
    assert found["guessed tokens on a cache that is a list"] == "decode_step step"


@TORCH
def test_training(ran: RunOnce) -> None:
    assert ran("stages", PROGRAMS / "training.py").trees == {
        "steps": "forward backward optimizer_step forward backward optimizer_step",
        "failures": "backward optimizer_step",
        "after them": "forward backward optimizer_step",
    }


# --- modules ---

BLOCK = "{p}blocks.{n}({p}blocks.{n}.mix({p}blocks.{n}.mix.0 {p}blocks.{n}.mix.1) {p}blocks.{n}.norm)"


def tower(prefix: str, blocks: int = 2) -> str:
    return " ".join([*(BLOCK.format(p=prefix, n=n) for n in range(blocks)), f"{prefix}named.last"])


WHOLE = f"forward(vision({tower('vision.')}) head)"


@TORCH
def test_names_of_modules(ran: RunOnce) -> None:
    assert ran("modules", PROGRAMS / "named_modules.py").trees == {
        "whole": WHOLE,
        "a part called alone": f"forward(vision({tower('vision.')}))",
        "a block called alone": BLOCK.format(p="vision.", n=1),
        "a second model": f"forward({tower('')})",
        # What torch.compile makes of a model has no modules left.
        "wrapped": f"forward {WHOLE}",
        # A module that is new is met at the first call and named from the second.
        "grown": f"{WHOLE} forward(vision({tower('vision.', 3)}) head)",
    }


@TORCH
def test_depth_and_folded_names(forks: Forks, tmp_path: Path) -> None:
    sink = tmp_path / "folded.jsonl"
    added = {**environment("modules", 2), "LLM_PERF_ANNOTATE_FOLD": "1"}
    files = {"LLM_PERF_ANNOTATE_SINK": str(sink), "PARTS_FILE": str(sink)}
    code = f"import runpy, sys; sys.argv = ['', 'whole']; runpy.run_path({str(PROGRAMS / 'named_modules.py')!r})"
    assert forks.run(code, {**os.environ, **added, **files}, tmp_path).returncode == 0
    assert trees(sink) == {"whole": "forward(vision(vision.blocks.N*2 vision.named.last) head)"}


def test_names_are_folded_where_the_environment_asks_for_it() -> None:
    """As docs/annotate.md says: what a run adds to the environment must not take the user's choice back."""
    assert "LLM_PERF_ANNOTATE_FOLD" not in environment("modules", base_env={"LLM_PERF_ANNOTATE_FOLD": "1"})


@TORCH
def test_models_are_what_they_were(ran: RunOnce) -> None:
    """Signatures, copies, pickles, hooks, fx, TorchScript, export, functorch, and when memory is freed."""
    expected = ran("off", PROGRAMS / "models_unharmed.py").stdout.splitlines()
    assert len(expected) > 15
    assert "False" not in "\n".join(
        line.removesuffix(" False") for line in expected if not line.startswith("signature")
    )
    assert ran("modules", PROGRAMS / "models_unharmed.py").stdout.splitlines() == expected
    assert ran("modules", PROGRAMS / "models_unharmed.py").trees
    assert ran("off", PROGRAMS / "models_unharmed.py").events == []


@TORCH
def test_torch_compile_makes_the_same_graphs(ran: RunOnce) -> None:
    """As many graphs, frames and recompilations, and no more graph breaks."""
    expected = ran("off", PROGRAMS / "compiled.py").stdout.splitlines()
    assert len(expected) == 11
    assert ran("modules", PROGRAMS / "compiled.py").stdout.splitlines() == expected
    assert "forward" in {event["name"] for event in ran("modules", PROGRAMS / "compiled.py").events}
    assert ran("off", PROGRAMS / "compiled.py").events == []


# --- several processes ---


@TORCH
def test_torchrun(forks: Forks, tmp_path: Path) -> None:
    sink = tmp_path / "ranks.jsonl"
    words = ["--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ranks.py")]
    code = f"from torch.distributed.run import main; main({words})"
    added = environment("modules", log=tmp_path / "log") | {"LLM_PERF_ANNOTATE_SINK": str(sink)}
    ended = forks.run(code, {**os.environ, **added}, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert sorted(read_log(tmp_path / "log").ranks.values()) == [0, 1]
    # The names are those of the model, not of the wrapper.
    step = "forward(0 1) backward optimizer_step"
    assert trees(sink) == {"": " | ".join([f"{step} {step} forward(0 1)"] * 2)}


@TORCH
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    sink = tmp_path / f"{method}.jsonl"
    ended = start([sys.executable, str(PROGRAMS / "spawned.py"), method], "stages", sink)
    assert ended.stdout.strip() == "[1, 2]", ended.stderr
    assert trees(sink) == {"": "forward*2"}
    assert str(ended.returncode) == "0"


# --- the seam for those who act on ranges ---

LISTENS = """
import torch
from _llm_perf_annotate.seen_ranges import ranges_seen
heard = []
def listen(domain, name, number, begins):
    heard.append((name, number, begins))
    if number == 3: raise ValueError("broken")
ranges_seen.listeners.append(listen)
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
for _ in range(4): model(torch.randn(1, 2))
print(heard)
"""


@TORCH
def test_a_listener_hears_of_every_stage_and_cannot_break_the_program(forks: Forks, tmp_path: Path) -> None:
    added = under_ncu(environment("stages", ranges=True), windows=False)
    added |= {"LLM_PERF_ANNOTATE_SINK": str(tmp_path / "sink")}
    ended = forks.run(LISTENS, {**os.environ, **added}, tmp_path)
    heard = [("forward", 1, True), ("forward", 1, False), ("forward", 2, True), ("forward", 2, False)]
    assert ended.stdout.strip() == str([*heard, ("forward", 3, True)])
    assert ended.stderr.count("llm-perf: acting on a range failed") == ended.stderr.count("llm-perf") == 1
    assert trees(tmp_path / "sink") == {"": "forward*4"}


@TORCH
@pytest.mark.parametrize("mode", ["off", "stages", "modules"])
def test_modules_are_marked_for_capture_windows_unless_they_have_ranges_already(
    forks: Forks, tmp_path: Path, mode: str
) -> None:
    sink = tmp_path / "sink"
    added = environment(mode, ranges=True) | {"LLM_PERF_ANNOTATE_SINK": str(sink)}
    model = "torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))"
    code = f"import torch\nmodel = {model}\nfor _ in range(3): model(torch.randn(1, 2))"
    (counted,) = in_fork(forks, code, tmp_path, **added).ranges.values()
    domain, prefix = ("LLM", "") if mode == "modules" else ("", "llm-perf:")  # marker ranges stay in the default domain
    stages = {} if mode == "off" else {("LLM", "forward"): 3}
    assert counted == stages | {(domain, f"{prefix}{name}"): 3 for name in ("0", "1", "1.0")}
    pushed = [json.loads(line)["name"] for line in sink.read_text().splitlines() if '"push"' in line]
    assert pushed.count(f"{prefix}1.0") == 3


@TORCH
def test_marker_ranges_of_long_paths_are_short_and_each_is_its_own(forks: Forks, tmp_path: Path) -> None:
    """Longer names would make the recording's table of ranges one that is read slowly."""
    code = """
import torch
class Call(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.rather_long_as_well, self.the_other_one_ü = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.below = Call(depth - 1) if depth else None
    def forward(self, x):
        x = self.the_other_one_ü(self.rather_long_as_well(x))
        return x if self.below is None else self.below(x)
Call(9)(torch.randn(1, 2))
"""
    (counted,) = in_fork(forks, code, tmp_path, **environment("off", ranges=True)).ranges.values()
    assert len(counted) == 29
    assert set(counted.values()) == {1}
    assert max(len(name.encode()) for _, name in counted) == 57
    assert ("", "llm-perf:below.rather_long_as_well") in counted


PRODUCTS = """
import torch
from torch.nn.functional import grouped_mm
def experts(x, weights, ends):
    return torch.nn.functional.grouped_mm(x, weights, offs=ends)
given = (torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 16).bfloat16(), torch.tensor([3, 8], dtype=torch.int32))
eager = experts(*given)
assert torch.equal(grouped_mm(*given[:2], offs=given[2]), eager)
try:
    torch.nn.functional.grouped_mm(given[0])
except TypeError:
    pass
whole = torch.compile(experts, backend="eager", fullgraph=True)
assert torch.equal(whole(*given), eager) and torch.equal(whole(*given), eager)
"""


@TORCH
def test_products_of_experts_have_marker_ranges_unless_they_are_compiled(forks: Forks, tmp_path: Path) -> None:
    """Compiled as a whole they stay: there is no break in the graph, and no range."""
    added = environment("off", ranges=True) | {"LLM_PERF_ANNOTATE_SINK": str(tmp_path / "sink")}
    (counted,) = in_fork(forks, PRODUCTS, tmp_path, **added).ranges.values()
    assert counted == {("", "llm-perf:(grouped_mm)"): 3}


CAPTURES = """
import torch
from _llm_perf_annotate import graphs, install
class Graph:
    def capture_begin(self): pass
    def capture_end(self): pass
    def replay(self): pass
graphs.annotate(Graph, install.active)
model, graph, empty = torch.nn.Sequential(torch.nn.Embedding(8, 2)), Graph(), Graph()
torch.set_grad_enabled(False)
graph.capture_begin(); model(torch.zeros(2, 1, dtype=torch.long)); graph.capture_end()
empty.capture_begin(); empty.capture_end()
model(torch.zeros(2, 5, dtype=torch.long)); graph.replay(); graph.replay(); empty.replay()
"""


@TORCH
def test_a_captured_graph_replays_under_its_stage(ran: RunOnce) -> None:
    """The class of CUDA graphs cannot be had without a GPU: one with the same methods stands in for it here."""
    assert ran("stages", CAPTURES).trees == {"": "decode_step prefill decode_step*2"}


# --- programs without torch, and what can go wrong ---


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def test_the_programs_own_sitecustomize_runs_as_ever(tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", "import sys\nsys.flag = __name__, __file__\n")
    write(tmp_path, "usercustomize.py", "raise RuntimeError('user code')\n")
    code = "import sys, sitecustomize; print(sys.flag, sitecustomize.__file__, sys.path)"
    marked, plain = (python(code, mode=mode, PYTHONPATH=str(tmp_path)) for mode in ("stages", "off"))
    assert "sitecustomize.py" in marked.stdout
    assert (marked.stdout, marked.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("text", ["raise ValueError('broken')", "import does_not_exist", "x ="])
def test_errors_in_the_programs_own_sitecustomize_stay_what_they_are(text: str, tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", text)
    marked, plain = (python("print(1)", mode=mode, PYTHONPATH=str(tmp_path)) for mode in ("stages", "off"))
    assert marked.stdout == plain.stdout == "1\n"
    assert marked.stderr == plain.stderr
    assert "sitecustomize" in plain.stderr


def test_another_tool_that_starts_in_the_same_way_is_chained_to(tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", "print('theirs')\n")
    first = start([sys.executable, "-c", ""], "stages", PYTHONPATH=str(tmp_path))
    assert first.stdout == "theirs\n"
    again = environment("stages", base_env=environment("stages", base_env={"PYTHONPATH": str(tmp_path)}))
    assert again["PYTHONPATH"].split(os.pathsep) == [str(INJECTED), str(tmp_path)]


# A stand-in for torch, to see the import hook alone.
FAKE = "import sys\nassert type(__spec__.loader).__name__ == 'SourceFileLoader'\n__version__ = '1.0'\n"


def test_the_import_hook_leaves_no_trace(tmp_path: Path) -> None:
    write(tmp_path, "torch.py", FAKE + "class nn:\n    class Module: pass\n")
    code = (
        "import importlib.util, inspect, sys\n"
        "assert importlib.util.find_spec('torch') and importlib.util.find_spec('torch')\n"
        "import torch\n"
        "print(type(torch.__loader__).__name__, 'exec_module' in vars(torch.__loader__), inspect.getsource(torch) != '')\n"
    )
    ended = python(code, PYTHONPATH=str(tmp_path))
    assert ended.stdout == "SourceFileLoader False True\n"
    assert ended.stderr == "llm-perf annotate: PyTorch 1.0 is too old to be annotated. Use 2.4 or later.\n"


def test_a_torch_that_cannot_be_prepared_is_told_of_once_and_works(tmp_path: Path) -> None:
    new = "class nn:\n    class Module: _compiled_call_impl = None\nclass compiler: is_dynamo_compiling = None\n"
    write(tmp_path, "torch.py", FAKE + new)  # but without what is in C
    ended = python("import torch; print(torch.__version__)", PYTHONPATH=str(tmp_path))
    assert ended.stdout == "1.0\n"
    assert ended.stderr.startswith("llm-perf annotate: torch could not be prepared: AttributeError")
    assert ended.stderr.count("\n") == 1


def test_a_torch_that_does_not_import_fails_as_ever(tmp_path: Path) -> None:
    write(tmp_path, "torch.py", "raise OSError('libcudart')\n")
    code = "for _ in range(2):\n    try: import torch\n    except OSError as e: print(e)\n"
    assert python(code, PYTHONPATH=str(tmp_path)).stdout == "libcudart\n" * 2


@TORCH
def test_a_file_that_cannot_be_written_does_not_stop_the_program(forks: Forks, tmp_path: Path) -> None:
    code = "import torch\nm = torch.nn.Sequential(torch.nn.Linear(2, 2))\nm(torch.randn(1, 2)); m(torch.randn(1, 2)); print(1)"
    missing = dict.fromkeys(("LLM_PERF_ANNOTATE_SINK", "LLM_PERF_ANNOTATE_LOG"), "/does/not/exist")
    ended = forks.run(code, {**os.environ, **environment("stages"), **missing}, tmp_path)
    assert ended.stdout == "1\n"
    assert ended.stderr == "llm-perf annotate: /does/not/exist cannot be written: No such file or directory.\n"


def test_a_program_without_torch_pays_next_to_nothing(tmp_path: Path) -> None:
    base = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    base["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds(mode: str) -> float:
        """Of processor time: other programs run on the machine too."""
        child = subprocess.Popen([sys.executable, "-c", ""], env={**base, **environment(mode, base_env=base)})
        used = os.wait4(child.pid, 0)[2]
        child.returncode = 0
        return used.ru_utime + used.ru_stime

    seconds("stages")  # writes byte code
    pairs = [(seconds("stages"), seconds("off")) for _ in range(20)]
    assert min(a for a, _ in pairs) - min(b for _, b in pairs) < 0.002


def test_nothing_is_imported_into_a_program_without_torch() -> None:
    code = "import sys; print(sorted(m for m in sys.modules))"
    marked, plain = (set(ast.literal_eval(python(code, mode=mode).stdout)) for mode in ("stages", "off"))
    assert marked - plain == {"sitecustomize", "_llm_perf_annotate", "_llm_perf_annotate.imports"}


@pytest.mark.parametrize("file", sorted(INJECTED.rglob("*.py")), ids=lambda p: p.name)
def test_injected_code_needs_only_the_standard_library_of_python_3_9(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top in ("torch", "nvtx", "_llm_perf_annotate"), name


# --- the outside ---


def test_environment() -> None:
    assert environment("off", base_env={}) == {}
    assert environment("off", base_env={"LLM_PERF_ANNOTATE": "stages"}) == {"LLM_PERF_ANNOTATE": "off"}
    added = environment("modules", 2, {"PYTHONPATH": "a:b"})
    assert added["PYTHONPATH"] == f"{INJECTED}:a:b"
    assert added["LLM_PERF_ANNOTATE_DEPTH"] == "2"


@pytest.mark.parametrize(
    "command",
    [
        ["python", "x.py", "-I"],
        ["python3.12", "-u", "-m", "package", "-E"],
        ["python", "-X", "importtime", "-W", "ignore", "-sP", "x.py"],
        [sys.executable, "-c", "pass", "-S"],
        ["bash", "run.sh"],
        ["env", "A=1", "python", "x.py"],
        ["srun", "-N", "1", "python", "x.py"],
    ],
)
def test_commands_with_nothing_against_them(command: list[str]) -> None:
    assert problems(command) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python", "-I", "x.py"], "-I isolates"),
        (["python3", "-uE", "-m", "x"], "-E makes it ignore PYTHONPATH"),
        (["python", "-BS", "x.py"], "-S keeps"),
        (["python", "-Wignore", "-X", "dev", "-I", "x.py"], "-I isolates"),
        (["env", "A=1", "python", "-E", "x.py"], "-E makes"),
        (["env", "PYTHONPATH=src", "python", "x.py"], "PYTHONPATH=src llm-perf profile"),
        (["sudo", "python", "x.py"], "Run llm-perf itself with sudo"),
        (["/bin/ls"], "not a Python program"),
    ],
)
def test_commands_that_cannot_be_annotated(command: list[str], said: str) -> None:
    (found,) = problems(command)
    assert said in found


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-s", "-P", "-B"])
def test_what_is_said_of_an_option_is_what_python_does(option: str, tmp_path: Path) -> None:
    write(tmp_path, "torch.py", "__version__ = '1.0'\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch"
    active = "llm-perf annotate" in python(code, option).stderr
    assert active == (problems([sys.executable, option, "-c", code]) == [])


def test_scripts_are_known_by_their_first_line(tmp_path: Path) -> None:
    for name, line in {
        "good": f"#!{sys.executable}",
        "isolated": "#!/usr/bin/python3 -I",
        "shell": "#!/bin/sh",
    }.items():
        (tmp_path / name).write_text(f"{line}\n")
        (tmp_path / name).chmod(0o755)
    long_path = f"#!/bin/sh\n'''exec' {sys.executable} -E \"$0\" \"$@\"\n' '''\n"
    (tmp_path / "long").write_text(long_path)
    (tmp_path / "long").chmod(0o755)
    assert problems([str(tmp_path / "good"), "-I"]) == []
    assert "-I isolates" in problems([str(tmp_path / "isolated")])[0]
    assert "-E makes" in problems([str(tmp_path / "long")])[0]
    assert problems([str(tmp_path / "shell")]) == []


def test_what_a_log_tells(tmp_path: Path) -> None:
    assert "No Python process" in read_log(tmp_path / "none").message
    log = write(tmp_path, "log", '{"pid": 1, "event": "trouble", "message": "m"}\n' * 2 + '{"pid": 1, "ev') / "log"
    assert read_log(log) == Annotated(troubles=["m"])
    assert read_log(log).message == ""
    log.write_text('{"pid": 1, "event": "torch"}\n')
    assert read_log(log).message == ""  # killed: nobody knows
    log.write_text('{"pid": 1, "event": "torch"}\n{"pid": 1, "event": "end", "stages": {}}\n')
    assert "no model was called" in read_log(log).message
    log.write_text('{"pid": 1, "event": "trouble", "message": "m", "of": "ranges"}\n' * 2)
    assert read_log(log) == Annotated(unwatched=["m"])
    assert "No Python process" in read_log(log).message, "that ranges are not counted does not explain it"
