"""The folder a run leaves: who ran what, with which tools, and what came of it.

Everything is written as the run goes, so that a run that was killed has it too: the manifest is replaced
as a whole after every step and is valid JSON at any moment. A little space is set aside at the start, so
that a run which fills the disk can still say so.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import yaml
from attrs import Factory, define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.interrupts import held
from llm_perf_opt.profiling.secrets import clean_argv, clean_settings, without_secrets
from llm_perf_opt.regions.model import Diagnosis
from llm_perf_opt.version import __version__

MANIFEST = "manifest.json"
_RESERVE = ".reserve"  # given up when the disk is full
_RESERVE_BYTES = 256 << 10
_GPU_FACTS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "memory.total",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "pstate",
)


@define
class Step:
    """One command of a run."""

    name: str  # "stage1" | "nsys" | "export" | "stats" | "ncu" | "raw"
    argv: list[str]  # without secrets
    status: str = "running"  # "running" | "captured" | "partial" | "nothing" | "done" | "failed"
    exit_code: int | None = None
    seconds: float | None = None
    files: dict[str, int] = Factory(dict)
    diagnostics: list[Diagnosis] = Factory(list)


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


@define
class RunDirectory:
    """A run in progress."""

    path: Path
    manifest: Manifest
    _began: float = Factory(time.monotonic)

    @staticmethod
    def create(
        out: Path | None, command: list[str], settings: dict[str, Any], *, recordings: bool = True
    ) -> RunDirectory:
        """Make the folder. Two runs never share one: an existing, non-empty folder is refused.

        `recordings`: whether profilers will leave something in it.
        """
        settings = clean_settings(settings)
        manifest = Manifest(__version__, _now(), clean_argv(command), settings=settings)
        path = fresh_folder() if out is None else out
        try:
            path = _own_folder(path, _manifest_text(manifest))
            run = RunDirectory(path, manifest)
            for name in ("nsys", "ncu") if recordings else ():
                (path / name).mkdir(exist_ok=True)
            (path / _RESERVE).write_bytes(bytes(_RESERVE_BYTES))
        except OSError as error:
            raise _unwritable(path, error) from error
        run.write_json("env.json", without_secrets(os.environ))
        run.write_yaml("config.yaml", settings)
        manifest.gpus_before = gpu_facts()
        run.save()
        return run

    def save(self) -> None:
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
                    (self.path / _RESERVE).unlink()
                    self._replace_once(name, text)
            except OSError as error:
                raise self._lost(error) from error

    def _replace_once(self, name: str, text: str) -> None:
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
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

    def begin(self, name: str, argv: list[str], folder: str) -> Step:
        """Note a command before it starts; `cmd.txt` can be pasted into a shell."""
        step = Step(name, clean_argv(argv))
        self.manifest.steps.append(step)
        self.save()
        try:
            # Arguments may hold bytes that are not UTF-8: written as they came, the line still works.
            with (self.path / folder / "cmd.txt").open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(shlex.join(step.argv) + "\n")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # the manifest has the command too
                raise self._lost(error) from error
        return step

    def finish(self, state: str) -> None:
        """Say how the run ended, as far as that can be written; nothing after it depends on this."""
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)
        self.manifest.state = state
        self.manifest.finished_at = _now()
        self.manifest.seconds = round(time.monotonic() - self._began, 2)
        with contextlib.suppress(UserError):
            self.save()  # before the GPU is asked: that may take a while
            self.manifest.gpus_after = gpu_facts()
            self.save()


def _manifest_text(manifest: Manifest) -> str:
    return json.dumps(attrs.asdict(manifest), indent=1) + "\n"


def gpu_facts() -> list[dict[str, str]]:
    """Name, driver and clocks of every GPU as nvidia-smi tells them; empty where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(_GPU_FACTS, row, strict=False)) for row in rows]


def _now() -> str:
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


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"The folder {path} cannot be written: {error.strerror or error}.",
        "Choose another with --out (the runners: hydra.run.dir).",
    )
