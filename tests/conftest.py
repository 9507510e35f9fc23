"""Where the recordings are, and the shortest way from recordings to a report."""

from __future__ import annotations

import contextlib
import gc
import gzip
import hashlib
import importlib
import lzma
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from attrs import evolve
from hypothesis import settings

import guard
from forks import Forks
from llm_perf_opt import demo_data
from llm_perf_opt.analysis import build
from llm_perf_opt.analysis.build import ReportOptions
from llm_perf_opt.nsight import tools
from llm_perf_opt.process.ask import Answer
from llm_perf_opt.readers import handover, ncu_rep, sandbox
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.readers.sandbox import Limits, Notes
from llm_perf_opt.regions.columns import CounterSet, Recording, Timeline
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from worked_out import WorkedOut

# Examples are not timed: on a busy machine any of them may take long. Tests name the number of a thorough look, or leave
# it at the usual one, which `make fuzz` multiplies; `make test` takes a half and `make check` an eighth (--hypothesis-profile),
# others each time.
USUAL_EXAMPLES = 100
settings.register_profile("thorough", deadline=None, max_examples=5 * USUAL_EXAMPLES)
settings.register_profile("all", deadline=None, max_examples=USUAL_EXAMPLES // 2)
settings.register_profile("quick", deadline=None, max_examples=USUAL_EXAMPLES // 8)
settings.load_profile("all")

worked_out = WorkedOut()
_build_anew = build.build_report


def build_report(*arguments: Any, **more: Any) -> NCUProfileRegionReport:
    """Builds a report once of what is equal to the last byte: tests ask for the same again, and so do commands.

    Hundreds of runs with the stand-ins leave the same recordings. Analysis is pure, and a report immutable (`test_view`
    holds that). A test that changes the analysis gets its own.
    """
    if guard.changed():
        return _build_anew(*arguments, **more)
    asked = hashlib.sha256(pickle.dumps((arguments, more))).hexdigest()
    return worked_out.value(f"built {asked}", lambda: _build_anew(*arguments, **more))


build.build_report = build_report  # before any test imports it


RECORDINGS = Path(__file__).parent / "recordings"
DEMO = Path(demo_data.__file__).parent
SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(guard)
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # as in the background of a script: tests of Ctrl-C would wait
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported stays: not to be gone through in search of garbage, again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # as in the command


def recording(name: str) -> Path:
    """The one recording whose file name contains `name`, as in `nsys*-train.sqlite`."""
    (found,) = RECORDINGS.glob(f"*{name}*")
    return found


def plain_bytes(path: Path) -> bytes:
    """What a file holds, unpacked; our own recordings are asked for often, and stay what they are."""
    return _of_ours(path) if path.parent in (RECORDINGS, DEMO) else _unpack(path)


def _unpack(path: Path) -> bytes:
    packed = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(packed)
    return lzma.decompress(packed) if path.suffix == ".xz" else packed


_of_ours = lru_cache(maxsize=16)(_unpack)


@lru_cache(maxsize=64)
def read(path: Path, launch_config: bool = False) -> Recording:
    """A recording; read once for all tests, which must not change it."""
    if guard.changed() or path.parent not in (RECORDINGS, DEMO):
        return read_recording(path, launch_config=launch_config)
    return worked_out.value(f"read {path} {launch_config}", lambda: read_recording(path, launch_config=launch_config))


def examples(count: int, **others: Any) -> settings:
    """Settings of a test that needs another number of examples than most; the profile's share of them."""
    return settings(max_examples=max(count * settings().max_examples // USUAL_EXAMPLES, 1), **others)


def timeline(name: str) -> Timeline:
    found = read(recording(f"nsys-*-{name}.sqlite"))
    assert isinstance(found, Timeline)
    return found


def counters(name: str) -> CounterSet:
    found = read(recording(f"ncu-*-{name}.ncu-rep"))
    assert isinstance(found, CounterSet)
    return found


def report(*paths: Path | str, **options: Any) -> NCUProfileRegionReport:
    """Read files and build a report of them. A text is the name of a recording, see `recording`.

    Built once for all tests that ask for the same; who changes one takes a copy.
    """
    files = tuple(recording(path) if isinstance(path, str) else path for path in paths)

    def build_it() -> NCUProfileRegionReport:
        recordings = [read(file, launch_config=len(files) > 1) for file in files]
        return build_report(recordings, ReportOptions(**options))

    if guard.changed() or not all(file.parent in (RECORDINGS, DEMO) for file in files):
        return build_it()
    return worked_out.value(f"report {files} {sorted(options.items())!r}", build_it)


def regions_of(scope: Scope | None) -> dict[str, NCUProfileRegion]:
    assert scope is not None
    return {region.key: region for region in scope.regions}


def codes(found: NCUProfileRegionReport | Recording) -> list[str]:
    return [diagnosis.code for diagnosis in found.diagnostics]


def installed(tool: str) -> str | None:
    """A profiler of this machine: LLM_PERF_NCU or LLM_PERF_NSYS, else PATH."""
    return os.environ.get(f"LLM_PERF_{tool.upper()}") or shutil.which(tool)


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[Path], Path]:
    """A function that gives a private, plain copy of a recording."""

    def unpack(path: Path) -> Path:
        target = tmp_path / path.name.removesuffix(".xz").removesuffix(".gz")
        target.write_bytes(plain_bytes(path))
        return target

    return unpack


@pytest.fixture(scope="session")
def forks(folder_of_all_workers: Path) -> Iterator[Forks]:
    """Torch, imported once for all programs that tests run with it."""
    with contextlib.closing(Forks(folder_of_all_workers)) as opened:
        yield opened


@pytest.fixture(scope="session")
def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, which its workers have in common."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "of_all_workers"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def worked_out_by_one_for_all(folder_of_all_workers: Path) -> None:
    """What one worker has read or built, the others read from a file of this run of the tests."""
    worked_out.folder = folder_of_all_workers


@pytest.fixture(scope="session", autouse=True)
def stand_ins_repeat_themselves() -> Iterator[None]:
    """Each run asks the tools for their help; the stand-ins say the same to all, and have to be started once."""
    ask_anew, said = tools.ask, {}

    def ask_once(argv: Sequence[str], **more: Any) -> Answer:
        if any(name.startswith("FAKE_") for name in os.environ) or not fake_tools.is_stand_in(argv[0]):
            return ask_anew(argv, **more)
        asked = Path(argv[0]).name, *argv[1:], more.get("together")
        if asked not in said:
            said[asked] = ask_anew(argv, **more)
        return evolve(said[asked], argv=list(argv))

    import fake_tools  # which imports from here

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "ask", ask_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_calibration_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reports look for measured peaks in the user's cache: tests have one of their own, empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_are_compiled_once() -> Iterator[None]:
    """A process writes one report and compiles the template of its page once; the tests write hundreds."""
    compile_one = jinja2.Environment.compile
    compiled: dict[tuple[Any, ...], Any] = {}

    def compile_once(self: jinja2.Environment, source: Any, *others: Any, **more: Any) -> Any:
        options = (self.autoescape, self.trim_blocks, self.lstrip_blocks, self.undefined)
        asked = (source, others, tuple(sorted(more.items())), options, frozenset(self.filters), frozenset(self.tests))
        if asked not in compiled:
            compiled[asked] = compile_one(self, source, *others, **more)
        return compiled[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", compile_once)
        yield


start_process = sandbox.ask
_answers: dict[tuple[str, str | None], sandbox.Answer] = {}


@lru_cache
def _digests_of_recordings() -> frozenset[str]:
    return frozenset(hashlib.sha256(plain_bytes(path)).hexdigest() for path in RECORDINGS.glob("*.ncu-rep*"))


def _ask_here(
    job: str, arguments: list[Any], source: str, limits: Limits, notes: Notes | None = None
) -> sandbox.Answer:
    """What the process of a reader would answer, without the process."""
    module, _, function = job.partition(":")
    value = getattr(importlib.import_module(module), function)(*arguments, notes=notes or (lambda name, value: None))
    with tempfile.TemporaryFile() as file:
        return sandbox.Answer(os.dup(file.fileno()), *handover.write(value, file))


_unpacked: dict[str, Path] = {}  # where a recording of ours was unpacked → that recording
_read: dict[tuple[Any, ...], tuple[sandbox.Answer, list[tuple[str, Any]]]] = {}


def _ask_once(
    job: str, arguments: list[Any], source: str, limits: Limits, notes: Notes | None = None
) -> sandbox.Answer:
    """What reading one of our own recordings gave when it was first asked for, with the notes on its way."""
    path = _unpacked.get(arguments[0]) or Path(arguments[0])
    own = path.parent in (RECORDINGS, DEMO)
    if job.endswith(":unpack_here"):
        _unpacked.pop(arguments[1], None)
        if own:
            Path(arguments[1]).write_bytes(plain_bytes(path))
            _unpacked[arguments[1]] = path
            return _ask_here(_NOTHING, [], source, limits, notes)
    if not own or not job.endswith(":read_here") or guard.changed():
        return _ask_here(job, arguments, source, limits, notes)
    asked = (path, job, *arguments[1:])
    if asked not in _read:
        said: list[tuple[str, Any]] = []
        _read[asked] = _ask_here(job, arguments, source, limits, lambda name, value: said.append((name, value))), said
    answer, said = _read[asked]
    for name, value in said if notes else ():
        notes(name, value)
    return answer


def nothing(*, notes: Notes) -> None:
    """The answer of who only writes a file."""


_NOTHING = f"{__name__}:{nothing.__name__}"


def _ask(job: str, arguments: list[Any], source: str, limits: Limits, notes: Notes | None = None) -> sandbox.Answer:
    if not job.startswith(ncu_rep.__name__):
        return _ask_once(job, arguments, source, limits, notes)
    digest = hashlib.sha256(Path(arguments[0]).read_bytes()).hexdigest()
    asked = (digest, os.environ.get("PYTHONPATH"))
    if asked not in _answers:
        # A damaged report may crash NVIDIA's reader, and the tests with it: ours are known to be whole.
        here = guard.missing("process") and digest in _digests_of_recordings()
        read_container(Path(arguments[0]), source)  # what this refuses never gets there
        ask = _ask_here if here else start_process
        _answers[asked] = ask(job, arguments, source, limits, notes)
    return _answers[asked]


@pytest.fixture(scope="session", autouse=True)
def recordings_are_read_here() -> Iterator[None]:
    """Each takes a process of its own, and hundreds of tests read the same few. Reports of ncu are asked for once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "ask", _ask)
        patch.setattr(sandbox, "prefetch", lambda *_: None)
        yield


@pytest.fixture
def recordings_are_read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what happens in that process."""
    monkeypatch.setattr(sandbox, "ask", start_process)
