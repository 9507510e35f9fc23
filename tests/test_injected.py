"""Code inside a program must not harm it: forks, signals, the end of the program, zip files, strange names and packages.

Real processes, without torch and without a tool: small modules stand in for torch and for the nvtx package, and write
down what reaches them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llm_perf_opt.inject import CaptureWindows, environment, read_log
from llm_perf_opt.inject.environment import INJECTED
from llm_perf_opt.readers.marker_ranges import PREFIX

pytestmark = pytest.mark.process

# What NVTX and the CUDA runtime are asked for is printed.
TORCH = """
from types import SimpleNamespace

def push(name):
    if name == "refused": raise ValueError("refused")
    print("push", name, flush=True)

class Runtime:
    def cudaProfilerStart(self): print("on", flush=True); at_start(); return 0
    def cudaProfilerStop(self): print("off", flush=True); return 0

def at_start(): pass

_C = SimpleNamespace(_nvtx=SimpleNamespace(rangePushA=push, rangePop=lambda: print("pop", flush=True)))
cuda = SimpleNamespace(cudart=Runtime, _is_in_bad_fork=lambda: False)
"""
# As the package does it where a tool is attached.
NVTX = """
def _push(message):
    print("push", type(message).__name__)
    if type(message) is str and message == "refused": raise ValueError("refused")

class Domain:
    def __init__(self, name): self.name = name
    def push_range(self, attributes=None, **more): _push(more.get("message", attributes))
    def pop_range(self): print("pop")

def push_range(message=None, color="blue", domain=None): _push(message)

def pop_range(domain=None): print("pop")

class annotate:
    def __init__(self, message=None, color=None, domain=None): self.message = message
    def __enter__(self): _push(self.message); return self
    def __exit__(self, *error): print("pop"); return False
    def __call__(self, function):
        def inner(*given, **named):
            _push(self.message)
            try: return function(*given, **named)
            finally: print("pop")
        return inner
"""
WINDOW = CaptureWindows({("", "window"): (1, 2)})


def run(
    folder: Path,
    program: str,
    windows: CaptureWindows | None = WINDOW,
    watched: bool = True,
    modules: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """A program as under ncu. `modules`: where it has its modules, if not in the folder."""
    if modules is None:
        (folder / "torch.py").write_text(TORCH)
    base = {**os.environ, "PYTHONPATH": str(modules or folder)}
    added = environment("off", base_env=base, ranges=watched, log=folder / "log")
    if windows is not None and watched:
        added |= windows.environment(folder / "windows.json", folder / "log")
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env={**base, **added}, capture_output=True, text=True, timeout=60)


def package(folder: Path, source: str = NVTX) -> None:
    (folder / "nvtx").mkdir()
    (folder / "nvtx" / "nvtx.py").write_text(source)
    (folder / "nvtx" / "__init__.py").write_text("from nvtx.nvtx import *\nfrom nvtx import nvtx\n")


# --- forks, signals, the end ---


def test_a_child_forked_while_another_thread_is_counting_opens_ranges(tmp_path: Path) -> None:
    """Only the thread that forks lives on in the child: a lock that another one holds is never released there."""
    program = """
import os, threading, torch, warnings
from _llm_perf_annotate.seen_ranges import ranges_seen
warnings.simplefilter("ignore")  # Python 3.12 warns of just this
held, done = threading.Event(), threading.Event()
def count():
    with ranges_seen._lock, ranges_seen.listeners[0]._lock: held.set(); done.wait(30)
thread = threading.Thread(target=count); thread.start(); held.wait()
child = os.fork()
if child == 0:
    torch._C._nvtx.rangePushA("window"); torch._C._nvtx.rangePop(); os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); done.set(); thread.join()
torch._C._nvtx.rangePushA("window"); torch._C._nvtx.rangePop()
"""
    ended = run(tmp_path, program)
    assert ended.stdout.split() == ["on", "push", "window", "pop", "off", "7", "on", "push", "window", "pop", "off"]
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_signal_handler_that_opens_ranges_may_come_at_any_moment(tmp_path: Path) -> None:
    program = """
import os, signal, torch
from _llm_perf_annotate.seen_ranges import ranges_seen
def handle(*_): torch._C._nvtx.rangePushA("handler"); torch._C._nvtx.rangePop()
signal.signal(signal.SIGUSR1, handle)
torch.at_start = lambda: os.kill(os.getpid(), signal.SIGUSR1)  # the profiler is being switched
torch._C._nvtx.rangePushA("window"); torch._C._nvtx.rangePop()
with ranges_seen._lock: os.kill(os.getpid(), signal.SIGUSR1)
print("end")
"""
    ended = run(tmp_path, program)
    handled = ["push", "handler", "pop"]
    assert ended.stdout.split() == ["on", *handled, "push", "window", "pop", "off", *handled, "end"]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_log(tmp_path / "log").unwatched == []


def test_a_program_ends_in_silence_while_a_thread_still_opens_ranges(tmp_path: Path) -> None:
    program = """
import itertools, sys, threading, time, torch
import _llm_perf_annotate.seen_ranges as counting
counting._MOST_NAMES = 10**9
def work():
    for number in itertools.count(): counting.ranges_seen.begin("", str(number)); counting.ranges_seen.end("")
threading.Thread(target=work, daemon=True).start()
while len(counting.ranges_seen.counts) < 20_000: time.sleep(0.001)
sys.setswitchinterval(1e-6)
"""
    for _ in range(3):
        ended = run(tmp_path, program, windows=None)
        assert (ended.returncode, ended.stderr) == (0, "")
    log = read_log(tmp_path / "log")
    assert log.ended == 3


def test_a_program_that_empties_its_list_of_modules_ends_in_silence(tmp_path: Path) -> None:
    program = """
import sys, torch
torch._C._nvtx.rangePushA("a"); torch._C._nvtx.rangePop()
for name in list(sys.modules):
    if name.startswith("_llm_perf"): del sys.modules[name]
"""
    ended = run(tmp_path, program, windows=None)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(read_log(tmp_path / "log").ranges.values()) == [{("", "a"): 1}]


# --- packages in a zip, and packages of another kind ---


def test_modules_of_one_zip_file_are_loaded_as_ever(tmp_path: Path) -> None:
    """All modules of a zip file have the same loader: the one that is watched must not answer for the others."""
    package(tmp_path)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        packed.writestr("torch/__init__.py", TORCH + "\nimport torch.part, other\n")
        packed.writestr("torch/part.py", "print('part')\n")
        packed.writestr("other.py", "import nvtx; print('other')\n")
        for file in (tmp_path / "nvtx").iterdir():
            packed.write(file, f"nvtx/{file.name}")
    program = """
import importlib.util
importlib.util.find_spec("nvtx"), importlib.util.find_spec("torch")  # looked for, not loaded
import torch, nvtx
print(nvtx.__file__.endswith("all.zip/nvtx/__init__.py"), "exec_module" in vars(nvtx.__loader__))
with nvtx.annotate("window"): pass
torch._C._nvtx.rangePushA("window"); torch._C._nvtx.rangePop()
"""
    ended, plain = (run(tmp_path, program, watched=on, modules=tmp_path / "all.zip") for on in (True, False))
    assert plain.stdout.split() == ["part", "other", "True", "False", "push", "str", "pop", "push", "window", "pop"]
    assert [word for word in ended.stdout.split() if word not in ("on", "off")] == plain.stdout.split()
    assert ended.stdout.split().count("on") == ended.stdout.split().count("off") == 2
    assert ended.stderr == plain.stderr == ""


OWN = {
    "nothing": "print('loaded')",
    "another signature": """
def push_range(name, *, colour="red"): print("push", name, colour)
def pop_range(*, quietly=False): print("pop", quietly)
class annotate:
    def __init__(self, name, *, colour): self.name = name
    def __enter__(self): push_range(self.name); return self
    def __exit__(self, *error): pop_range(quietly=True)
    def __call__(self, function): return function
""",
    "a function as annotate": NVTX + "def annotate(message): print(message)\n",
    "nothing to call": NVTX + "del annotate.__call__\n",
    "nothing to enter": NVTX + "del annotate.__enter__, annotate.__exit__\n",
    "made by __new__": NVTX + "del annotate.__init__\nannotate.__new__ = lambda kind, message: object.__new__(kind)\n",
    "no room": NVTX.replace("class annotate:", "class annotate:\n    __slots__ = ('message',)"),
    "no functions": NVTX + "push_range = pop_range = None\n",
    "half a domain": NVTX + "del Domain.pop_range\n",
    "a domain of another kind": NVTX + "Domain = 7\n",
}
USES_OWN = """
import torch, nvtx
def tried(action):
    try: print(action())
    except Exception as error: print(type(error).__name__, error)
def entered(*given, **named):
    with nvtx.annotate(*given, **named): print("inside")
tried(lambda: entered("a")); tried(lambda: entered(name="a", colour="blue")); tried(lambda: entered(message="a"))
tried(lambda: nvtx.push_range("a")); tried(lambda: nvtx.push_range(name="a", colour="blue"))
tried(lambda: nvtx.pop_range()); tried(lambda: nvtx.pop_range(quietly=True))
tried(lambda: callable(nvtx.annotate("a"))); tried(lambda: nvtx.annotate("a")(len)("abc"))
tried(lambda: nvtx.Domain("LLM").push_range("b")); tried(lambda: nvtx.Domain("LLM").pop_range())
"""


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_a_package_of_the_program_s_own_works_as_ever(source: str, tmp_path: Path) -> None:
    """It is called nvtx, and is another, or a part of it, or changed by the program."""
    package(tmp_path, source)
    watched, plain = (run(tmp_path, USES_OWN, watched=on) for on in (True, False))
    assert watched.stdout == plain.stdout
    assert (watched.returncode, watched.stderr) == (plain.returncode, plain.stderr) == (0, "")


# --- names that are none, and ranges that do not open ---

STRANGE_NAMES = """
import torch, nvtx
class Odd:
    __hash__ = None
    def __bool__(self): raise ValueError("neither")
    def __eq__(self, other): raise ValueError("not comparable")
for name in (["a"], {}, {"b"}, Odd(), b"bytes", 3, 2.5, object(), True, ()):
    with nvtx.annotate(name): pass
    with nvtx.annotate("window", None, name): pass
    nvtx.annotate(name)(len)("abc")
    nvtx.push_range(name); nvtx.pop_range()
    nvtx.push_range("window", domain=name); nvtx.pop_range(name)
    nvtx.Domain(name).push_range(name); nvtx.Domain(name).pop_range()
print("---")
with nvtx.annotate("window"): print("inside")
"""


def test_names_that_are_no_text_are_passed_on_and_the_windows_still_work(tmp_path: Path) -> None:
    package(tmp_path)
    watched, plain = (run(tmp_path, STRANGE_NAMES, watched=on) for on in (True, False))
    before, _, after = watched.stdout.partition("---")
    assert before == plain.stdout.partition("---")[0]
    assert after.split() == ["on", "push", "str", "inside", "pop", "off"]
    assert watched.stderr == plain.stderr == ""
    log = read_log(tmp_path / "log")
    assert log.unwatched == []
    assert list(log.ranges.values()) == [{("", "window"): 1}]


REFUSED = CaptureWindows({("", "refused"): (1,), ("", "window"): (1,)}, stop=True)
WAYS = {
    "torch": 'torch._C._nvtx.rangePushA("refused")',
    "function": 'nvtx.push_range("refused")',
    "domain": 'nvtx.Domain(None).push_range(message="refused")',
    "with": 'nvtx.annotate("refused").__enter__()',
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_range_that_does_not_open_leaves_no_window_open_and_does_not_count(way: str, tmp_path: Path) -> None:
    package(tmp_path)
    program = f"""
import torch, nvtx
for _ in range(3):
    try: {way}
    except ValueError as error: print(error)
print("outside")
with nvtx.annotate("window"): print("inside")
print("end")
"""
    ended = run(tmp_path, program, REFUSED)
    words = [word for word in ended.stdout.split() if word not in ("push", "str", "pop")]
    assert words == [*["on", "off", "refused"] * 3, "outside", "on", "inside", "off", "end"]
    assert (ended.returncode, ended.stderr) == (0, "")
    log = read_log(tmp_path / "log")
    assert list(log.ranges.values()) == [{("", "window"): 1}]
    assert (log.windows, log.ended_before) == (0, ""), "one window has not been"


def test_the_modules_of_a_model_leave_the_names_of_the_program_room() -> None:
    """A model with experts has more modules than a program has names; both are counted."""
    code = (
        f"import sys; sys.path.insert(0, {str(INJECTED)!r})"
        + """
from _llm_perf_annotate.seen_ranges import _MOST_NAMES, ranges_seen
for number in range(_MOST_NAMES + 10): ranges_seen.begin("", f"llm-perf:experts.{number}"); ranges_seen.end("")
ranges_seen.begin("", "decode_step")
assert ranges_seen.counts["", "decode_step"] == 1
for number in range(_MOST_NAMES + 10): ranges_seen.begin("", f"step {number}"); ranges_seen.end("")
assert ("", f"step {_MOST_NAMES + 5}") not in ranges_seen.counts
assert ("", f"llm-perf:experts.{_MOST_NAMES + 5}") in ranges_seen.counts
"""
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_inside_and_outside_know_marker_ranges_by_the_same_prefix() -> None:
    text = (INJECTED / "_llm_perf_annotate" / "seen_ranges.py").read_text(encoding="utf-8")
    assert f'MARKER = "{PREFIX}"' in text
