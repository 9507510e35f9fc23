"""The folder a run leaves: who ran what, with which tools, and what came of it.

Everything is written as the run goes, so that a run that was killed has it too: the manifest is replaced
as a whole after every step and is valid JSON at any moment. Whoever writes in the folder holds its lock. A
little space is reserved at the start, so that a run which fills the disk can still say so.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from attrs import Factory, define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.files import folder_below, open_new, open_to_append, unfinished_name, write_text
from llm_perf_opt.nsight.nvidia_smi import gpu_facts
from llm_perf_opt.process.background import BackgroundTasks
from llm_perf_opt.process.interrupts import held
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.command_lines import clean_step, clean_typed, pasted_line
from llm_perf_opt.rundir.contents import remove_unfinished
from llm_perf_opt.rundir.draft import settle
from llm_perf_opt.rundir.layout import MANIFEST, RESERVE, artefact
from llm_perf_opt.rundir.manifest import (
    Manifest,
    Step,
    manifest_text,
    now,
    program_files,
    read_manifest,
    without_strange_numbers,
)
from llm_perf_opt.rundir.secrets import clean_settings, kept_environment
from llm_perf_opt.rundir.signature import sign
from llm_perf_opt.version import __version__

_RESERVE_BYTES = 256 << 10


@define
class RunDirectory:
    """A run in progress."""

    path: Path
    manifest: Manifest
    lock: int | None = None  # see run_lock.py
    signs: bool = True  # False: the launch spec is not this user's, and stays recognisable as such
    instead: dict[str, str] = Factory(dict)  # words of commands → what takes their place in what is written
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
        typed: list[str] | None = None,
        show_command: bool = False,
        gpus: Callable[[], list[dict[str, str]]] | None = None,
        place: tuple[int, str] | None = None,
    ) -> RunDirectory:
        """Make the folder. Two runs never share one: an existing, non-empty folder is refused.

        `recordings`: whether profilers will leave something in it. `folder`: where it was started, if not here.
        `typed`: what the user typed to run the command, where that is more. `show_command`: hide only what looks secret.
        `gpus`: gives what the GPUs report; they are asked where it is missing. `place`: rank and node, in a job.
        """
        settings = clean_settings(settings, show=show_command)
        kept = without_strange_numbers(settings)
        manifest = Manifest(
            __version__,
            now(),
            clean_typed(typed or command, command, show=show_command),
            settings=kept,
            made_by=made_by,
            host=socket.gethostname(),
            pid=os.getpid(),
            rank=None if place is None else place[0],
            node="" if place is None else place[1],
            folder=str((folder or Path.cwd()).absolute()),
            workload=clean_step(command, command, show=show_command),
            shows_command=show_command,
            program=program_files(command),
        )
        manifest.signature = sign(manifest.launch_spec)  # from the start: who is killed now can be resumed
        with contextlib.ExitStack() as whole:
            with held():  # an interrupt must leave neither a folder without a manifest nor a run that seems to go on
                path = fresh_folder() if out is None else out
                try:
                    path = _own_folder(path, manifest_text(manifest))
                    run = RunDirectory(path, manifest, _lock(path))
                    whole.enter_context(run.interrupted_in_order())
                    for name in ("nsys", "ncu") if recordings else ():
                        (path / name).mkdir(exist_ok=True)
                    run.keep_reserve()
                except OSError as error:
                    raise _unwritable(path, error) from error
            run.write_json("env.json", kept_environment(os.environ))
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
            return RunDirectory(path, manifest, lock, signs=manifest.is_ours)
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
        """Remove what a killed process was writing, and finish its report: nobody writes now."""
        settle(self.path)
        remove_unfinished(self.path.resolve())

    def keep_reserve(self) -> None:
        """Reserve a little space, for the last words of a run that fills the disk."""
        with open_new(self.path / RESERVE) as file:
            file.write(bytes(_RESERVE_BYTES))

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
        if self.signs:
            self.manifest.signature = sign(self.manifest.launch_spec)
        self._replace(MANIFEST, manifest_text(self.manifest))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, json.dumps(content, indent=1) + "\n")

    def write_yaml(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))

    def _replace(self, name: str, text: str) -> None:
        """Write a whole file at once: whoever looks sees the old one or the new one."""
        with held():  # an interrupt must not leave a state that nobody wrote down
            try:
                try:
                    write_text(self.path / name, text, below=self.path)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    (self.path / RESERVE).unlink()
                    write_text(self.path / name, text, below=self.path)
            except OSError as error:
                raise self._lost(error) from error

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
        program: list[str] | None = None,
        through: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        printed: Path | None = None,
        **facts: Any,
    ) -> Step:
        """Note a command before it starts, `facts`: as `Step` has them; `cmd.txt` can be pasted into a shell.

        `program`: the user's part of it, at its end; `through`: words right before that, which are of use here only.
        `environment`: besides the inherited one. `printed`: the file that gets what it prints.
        """
        argv, program = ([self.instead.get(word, word) for word in words] for words in (argv, program or []))
        words = clean_step(argv, program, show=self.manifest.shows_command)
        step = Step(name, words, capture=capture, **facts)
        own = len(argv) - len(program)
        words = [*words[: own - len(through or ())], *words[own:]]
        line = pasted_line(
            *(words, environment or {}),
            folder=self.manifest.folder,
            run=self.path,
            runs_program=bool(program),
            printed=printed,
        )
        self.manifest.steps.append(step)
        self.save()
        try:
            self._clear_links(folder)
            with open_to_append(self.path / folder / "cmd.txt") as file:
                file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # the manifest has the command too
                raise self._lost(error) from error
        return step

    def _clear_links(self, folder: str) -> None:
        """A program may place links in the folder of a step: tools must not write through them. Raises OSError."""
        with folder_below(self.path, Path(folder).parts, make=True) as inside, os.scandir(inside) as entries:
            for name in [entry.name for entry in entries if entry.is_symlink()]:
                if (
                    artefact((PurePosixPath(folder) / name).as_posix()) is not None
                ):  # the link goes, not what it leads to
                    os.unlink(name, dir_fd=inside)

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
                self.save()
        if not self._gpus_asked:  # afterwards: that may take a while
            self.manifest.gpus_after = gpu_facts()
            with contextlib.suppress(UserError):
                self.save()


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
    temporary = unfinished_name(out / MANIFEST)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            fix = "Every run needs a folder of its own: choose another with --out (the runners: hydra.run.dir)."
            raise UserError(f"The folder {out} is not empty.", fix)
        temporary.write_text(manifest, encoding="utf-8")
        # Two runs that start together cannot both, and nobody ever sees an empty manifest.
        try:
            (out / MANIFEST).hardlink_to(temporary)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            (out / MANIFEST).touch(exist_ok=False)
            temporary.replace(out / MANIFEST)
    except FileExistsError as error:
        what = "belongs to another run" if out.is_dir() else "is a file, and a folder is needed there"
        raise UserError(f"{out} {what}.", "Choose another with --out (the runners: hydra.run.dir).") from error
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return out


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
