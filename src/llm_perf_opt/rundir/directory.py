"""The folder a run leaves: who ran what, with which tools, and what came of it.

Everything is written as the run goes, so that a run that was killed has it too: the manifest is replaced
as a whole after every step and is valid JSON at any moment. Whoever writes in the folder holds its lock. A
little space is set aside at the start, so that a run which fills the disk can still say so.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import yaml
from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.nsight.nvidia_smi import gpu_facts
from llm_perf_opt.process.background import BackgroundTasks
from llm_perf_opt.process.interrupts import held
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.secrets import clean_argv, clean_settings, without_secrets
from llm_perf_opt.rundir.signature import fits, seal
from llm_perf_opt.untrusted import parse_json
from llm_perf_opt.version import __version__

if TYPE_CHECKING:
    import cattrs

MANIFEST = "manifest.json"
NOT_KEPT = "(not kept: no number of JSON)"
RESERVE = ".reserve"  # given up when the disk is full
_RESERVE_BYTES = 256 << 10
LARGEST_MANIFEST = 64 << 20
_DEEPEST = 50  # levels; what is read has to be written again, and that gives up earlier than reading does


@define
class Step:
    """One command of a run."""

    name: str  # "stage1" | "nsys" | "export" | "stats" | "ncu" | "raw"
    argv: list[str]  # without secrets
    status: str = (
        "running"  # "running" | "captured" | "partial" | "nothing" | "done" | "failed" | "refused": asked again
    )
    exit_code: int | None = None
    seconds: float | None = None
    files: dict[str, int] = Factory(dict)
    diagnostics: list[Diagnosis] = Factory(list)
    capture: str = ""  # of ncu: the report's name without its ending
    planned: str = ""  # of ncu: the planned capture that it was for
    alternative: str = ""  # of ncu: the alternative of that capture which it is; none: it is as planned
    replay_mode: str = ""  # of ncu


# What the run itself writes, and the report: of these names half a file may be left.
_OWN = ("manifest.json", "env.json", "plan.json", "config.yaml", "inputs.yaml")
_OF_REPORT = (
    *("report.json", "report.md", "report.html", "kernels.md", "kernels.csv", "regions.csv"),
    *("stakeholder_summary.md", "metrics.csv", "sections.txt", ".llm-perf-files"),
    *("stages.svg", "kernels.svg", "roofline.svg"),
)
_TABLES_OF_NSYS = re.compile(r"\.(?:run\.sqlite|summary_cuda_gpu_kern_sum\.csv)\.tmp")
_TABLES_OF_NCU = re.compile(r"\.raw(?:-.+)?\.csv\.tmp")
_HALF_WRITTEN = re.compile(rf"\.(?:{'|'.join(map(re.escape, (*_OWN, *_OF_REPORT)))})\.\d+\.tmp")


@define
class Manifest:
    """What `manifest.json` holds."""

    llm_perf_opt: str
    started_at: str
    command: list[str]  # the workload
    state: str = "running"  # "running" | "done" | "failed" | "interrupted"
    finished_at: str | None = None
    seconds: float | None = None  # by a clock nobody sets; the two times above are the wall's
    tools: dict[str, str] = Factory(dict)
    gpus_before: list[dict[str, str]] = Factory(list)
    gpus_after: list[dict[str, str]] = Factory(list)
    settings: dict[str, Any] = Factory(dict)
    selection: dict[str, list[str]] = Factory(dict)  # regions and kernels the report is of
    steps: list[Step] = Factory(list)
    diagnostics: list[Diagnosis] = Factory(list)  # of the run as a whole; those of a step are with it
    made_by: str = ""  # "profile" | "plan" | "deep_profile_runner" | "llm_profile_runner"
    host: str = ""  # with `pid`: what to look for where it is not known whether the run still goes on
    pid: int = 0
    folder: str = ""  # where it was started: relative paths in its command begin there
    program: dict[str, str] = Factory(dict)  # files named in the command, with the SHA-256 of each
    captures: list[dict[str, Any]] | None = None  # what ncu is asked for, in order; None: not decided yet
    earlier_steps: list[Step] = Factory(list)  # that were taken again when the run was resumed
    resumed: list[dict[str, Any]] = Factory(list)
    compressed: dict[str, dict[str, Any]] = Factory(dict)  # file of the run → what it is packed as
    seal: str = ""  # see seal.py

    @property
    def orders(self) -> dict[str, Any]:
        """What is started when the run is resumed, and how."""
        return {"command": self.command, "settings": self.settings, "folder": self.folder, "captures": self.captures}

    @property
    def is_ours(self) -> bool:
        """Are the orders those that this user gave on this machine?"""
        return fits(self.orders, self.seal)


@define
class RunDirectory:
    """A run in progress."""

    path: Path
    manifest: Manifest
    lock: int | None = None  # see run_lock.py
    seals: bool = True  # False: the orders are not this user's, and stay recognisable as such
    background: BackgroundTasks = Factory(BackgroundTasks)  # noted whenever the manifest is written
    _began: float = Factory(time.monotonic)
    _gpus_asked: bool = False

    @staticmethod
    def create(
        out: Path | None,
        command: list[str],
        settings: dict[str, Any],
        *,
        recordings: bool = True,
        made_by: str = "",
        folder: Path | None = None,
        gpus: Callable[[], list[dict[str, str]]] | None = None,
    ) -> RunDirectory:
        """Make the folder. Two runs never share one: an existing, non-empty folder is refused.

        `recordings`: whether profilers will leave something in it. `folder`: where it was started, if not here.
        `gpus`: gives what the GPUs said; they are asked where it is missing.
        """
        settings = clean_settings(settings)
        kept = _without_strange_numbers(settings)
        manifest = Manifest(
            __version__,
            now(),
            clean_argv(command),
            settings=kept,
            made_by=made_by,
            host=socket.gethostname(),
            pid=os.getpid(),
            folder=str((folder or Path.cwd()).absolute()),
            program=program_files(command),
        )
        manifest.seal = seal(manifest.orders)  # from the first word on: who is killed now can be resumed
        path = fresh_folder() if out is None else out
        try:
            path = _own_folder(path, _manifest_text(manifest))
            run = RunDirectory(path, manifest, _lock(path))
            for name in ("nsys", "ncu") if recordings else ():
                (path / name).mkdir(exist_ok=True)
            run.keep_reserve()
        except OSError as error:
            raise _unwritable(path, error) from error
        with run.interrupted_in_order():
            run.write_json("env.json", without_secrets(os.environ))
            run.write_yaml("config.yaml", settings)
            manifest.gpus_before = gpus() if gpus is not None else gpu_facts()
            run.save()
        return run

    @staticmethod
    def reopen(path: Path) -> RunDirectory:
        """A run that exists, to work on it: nobody else may meanwhile. Nothing is changed yet."""
        path = path.absolute()
        read_manifest(path)  # what is wrong with it matters more than who has it
        lock = _lock(path)
        try:
            manifest = read_manifest(path)
            return RunDirectory(path, manifest, lock, seals=manifest.is_ours)
        except UserError:
            run_lock.release(lock)
            raise

    @contextlib.contextmanager
    def interrupted_in_order(self) -> Iterator[None]:
        """An interrupt before the steps of a run, or between them and its end, leaves none that seems to go on."""
        try:
            yield
        except KeyboardInterrupt:
            if self.manifest.state == "running":
                self.finish("interrupted")
            self.release()
            raise

    def drop_unfinished(self) -> None:
        """Remove what a killed process was writing, as `_replace_once` and the report name it: nobody writes now."""
        folders = (self.path, self.path / "pictures", *(self.path / "ncu" / "regions").glob("*"))
        for folder in folders:
            if folder.is_symlink() or folder.parent.is_symlink():
                continue
            for file in folder.glob(".*.tmp"):
                if _HALF_WRITTEN.fullmatch(file.name) and not file.is_symlink() and file.is_file():
                    file.unlink()
        for place, tables in ((self.path / "nsys", _TABLES_OF_NSYS), (self.path / "ncu", _TABLES_OF_NCU)):
            for file in () if place.is_symlink() else place.glob(".*.tmp"):
                if tables.fullmatch(file.name) and not file.is_symlink() and file.is_file():
                    file.unlink()

    def keep_reserve(self) -> None:
        """Set a little space aside, for the last words of a run that fills the disk."""
        (self.path / RESERVE).write_bytes(bytes(_RESERVE_BYTES))

    def release(self) -> None:
        """Others may write in the folder again: nothing of ours does."""
        self.background.end()
        run_lock.release(self.lock)
        self.lock = None

    @property
    def handles(self) -> tuple[int, ...]:
        """File descriptors for everything that is started: as long as one is open, the run is not over."""
        return () if self.lock is None else (self.lock,)

    def save(self) -> None:
        self.background.settle()
        if self.seals:
            self.manifest.seal = seal(self.manifest.orders)
        self._replace(MANIFEST, _manifest_text(self.manifest))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, json.dumps(content, indent=1) + "\n")

    def write_yaml(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))

    def _replace(self, name: str, text: str) -> None:
        """Write a whole file at once: whoever looks sees the old one or the new one."""
        with held():  # an interrupt must not leave a state that nobody wrote down
            try:
                try:
                    self._replace_once(name, text)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    (self.path / RESERVE).unlink()
                    self._replace_once(name, text)
            except OSError as error:
                raise self._lost(error) from error

    def _replace_once(self, name: str, text: str) -> None:
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            # Made anew: what somebody else left under this name is not written through.
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _lost(self, error: OSError) -> UserError:
        """The folder was fine when the run began."""
        why = f"cannot be written any more: {error.strerror or error}"
        if not self.path.is_dir():
            why = "is gone: it was removed or moved while the run went on"
        return UserError(
            f"The run directory {self.path} {why}.",
            f"What is there can still be read: llm-perf report {shlex.quote(str(self.path))} --out ANOTHER-FOLDER",
            ExitCode.NOTHING_CAPTURED,
        )

    def begin(
        self,
        name: str,
        argv: list[str],
        folder: str,
        capture: str = "",
        *,
        planned: str = "",
        alternative: str = "",
        replay_mode: str = "",
    ) -> Step:
        """Note a command before it starts; `cmd.txt` can be pasted into a shell."""
        step = Step(
            name, clean_argv(argv), capture=capture, planned=planned, alternative=alternative, replay_mode=replay_mode
        )
        self.manifest.steps.append(step)
        self.save()
        try:
            (self.path / folder).mkdir(exist_ok=True)  # a run may have been killed before it was there
            # Arguments may hold bytes that are not UTF-8: written as they came, the line still works.
            with (self.path / folder / "cmd.txt").open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(shlex.join(step.argv) + "\n")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # the manifest has the command too
                raise self._lost(error) from error
        return step

    def ask_gpus(self) -> None:
        """Begin to ask how the GPUs are at the end of the run, beside whatever is left to do."""
        self._gpus_asked = True
        self.background.start(gpu_facts, self._note_gpus)

    def _note_gpus(self, facts: list[dict[str, str]]) -> None:
        self.manifest.gpus_after = facts

    def finish(self, state: str) -> None:
        """Say how the run ended, as far as that can be written; nothing after it depends on this.

        What still goes on beside the run is ended: who wants it waits for it before.
        """
        with held():  # a second interrupt must not leave a run that seems to go on
            self.background.end()
        with contextlib.suppress(OSError):
            (self.path / RESERVE).unlink(missing_ok=True)
        self.manifest.state = state
        self.manifest.finished_at = now()
        self.manifest.seconds = round(time.monotonic() - self._began, 2)
        with contextlib.suppress(UserError):
            self.save()  # before the GPU is asked: that may take a while
            if not self._gpus_asked:
                self.manifest.gpus_after = gpu_facts()
                self.save()


def _without_strange_numbers(value: Any) -> Any:
    """Settings as JSON can hold them: a model's configuration may have infinities, and JSON has none."""
    if isinstance(value, Mapping):
        return {name: _without_strange_numbers(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_strange_numbers(item) for item in value]
    return f"{NOT_KEPT} {value}" if isinstance(value, float) and not math.isfinite(value) else value


def _manifest_text(manifest: Manifest) -> str:
    return json.dumps(attrs.asdict(manifest), indent=1) + "\n"


def read_manifest(run: Path) -> Manifest:
    """The manifest of a run directory; `UserError` where there is none, or none of ours."""
    import cattrs  # here, because most commands only want the name of the file

    try:
        file = run / MANIFEST
        if file.is_symlink() or not file.is_file():
            raise FileNotFoundError(2, "there is no manifest.json in it")
        if file.stat().st_size > LARGEST_MANIFEST:
            raise ValueError("no manifest is that large")
        content = parse_json(file.read_text(encoding="utf-8"))
        if _is_deeper_than(_DEEPEST, content):
            raise ValueError("no manifest is nested that deeply")
        return _converter().structure(content, Manifest)
    except OSError as error:
        raise UserError(
            f"{run} is not a run directory of llm-perf: {error.strerror or error}.",
            "Give the folder that llm-perf profile made. See: llm-perf runs list",
        ) from error
    # What a stranger wrote there may fail in any way; OverflowError: a whole number too large for seconds.
    except (
        *(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError),
        cattrs.BaseValidationError,
    ) as error:
        raise UserError(
            f"The manifest of {run} is damaged: it is not what llm-perf writes.",
            f"Its recordings can still be reported: llm-perf report {shlex.quote(str(run))}",
        ) from error


def _is_deeper_than(levels: int, value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _is_deeper_than(levels - 1, item) for item in items)


@lru_cache(maxsize=1)
def _converter() -> cattrs.Converter:
    """Converts nothing: a text where a number belongs is damage."""
    import cattrs

    def exactly(kind: type, *kinds: type) -> Callable[[Any, Any], Any]:
        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise TypeError(f"{value!r} is not {kind.__name__}")
            return kind(value)

        return structure

    converter = cattrs.Converter(detailed_validation=False)
    for kind, *kinds in ((str, str), (int, int), (float, float, int)):
        converter.register_structure_hook(kind, exactly(kind, *kinds))
    return converter


_LARGEST_PROGRAM_FILE = 64 << 20


def program_files(command: list[str]) -> dict[str, str]:
    """The files a command names, the program itself among them, with what they hold as SHA-256.

    Modules they import are not among them: what runs is known to the program only.
    """
    found = {}
    for number, word in enumerate(command):
        name = shutil.which(word) if number == 0 else word
        try:
            path = Path(name or "")
            if name and path.is_file() and path.stat().st_size <= _LARGEST_PROGRAM_FILE:
                found[word] = hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, ValueError):  # ValueError: a word with a zero byte
            continue
    return {name: digest for name, digest in found.items() if clean_argv([name]) == [name]}


def now() -> str:
    """The time, as manifests tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def fresh_folder() -> Path:
    """A new folder named after this second; with a number behind it where another run was faster."""
    base = Path("tmp") / "profile-output" / datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 1000):
        path = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(path, error) from error
        return path
    raise UserError(
        f"There are too many runs named {base.name}.", "Give a folder with --out (the runners: hydra.run.dir)."
    )


def _own_folder(out: Path, manifest: str) -> Path:
    """Make a folder ours, with its first manifest: whoever makes that has the folder."""
    temporary = out / f".{MANIFEST}.{os.getpid()}.tmp"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise _not_empty(out)
        temporary.write_text(manifest, encoding="utf-8")
        # Two runs that start together cannot both, and nobody ever sees an empty manifest.
        _claim(temporary, out / MANIFEST)
    except FileExistsError as error:
        what = "belongs to another run" if out.is_dir() else "is a file, and a folder is needed there"
        raise UserError(f"{out} {what}.", "Choose another with --out (the runners: hydra.run.dir).") from error
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return out


def _claim(temporary: Path, target: Path) -> None:
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        target.touch(exist_ok=False)
        temporary.replace(target)


def _not_empty(out: Path) -> UserError:
    return UserError(
        f"The folder {out} is not empty.",
        "Every run needs a folder of its own: choose another with --out (the runners: hydra.run.dir).",
    )


def _lock(path: Path) -> int | None:
    try:
        return run_lock.take(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"The folder {path} cannot be written: {error.strerror or error}.",
        "Choose another with --out (the runners: hydra.run.dir).",
    )
