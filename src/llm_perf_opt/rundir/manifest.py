"""What `manifest.json` says of a run: who ran what, with which tools, in which steps, and what came of it.

It is read back from folders that may come from anyone, so whatever is not as this project writes it is damage.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir.command_lines import clean_argv
from llm_perf_opt.rundir.layout import MANIFEST
from llm_perf_opt.rundir.signature import is_signed
from llm_perf_opt.untrusted import parse_json, refuse_deep

if TYPE_CHECKING:
    import cattrs

NOT_KEPT = "(not kept: no number of JSON)"
LARGEST_MANIFEST = 64 << 20
_DEEPEST = 50  # levels; what is read has to be written again, and that fails earlier than reading does


@define
class Step:
    """One command of a run."""

    name: str  # "stage1" | "nsys" | "export" | "stats" | "ncu" | "raw" | "details"
    argv: list[str]  # without secrets
    # "running" | "captured" | "partial" | "nothing" | "done" | "failed" | "refused": asked again
    status: str = "running"
    exit_code: int | None = None
    seconds: float | None = None
    files: dict[str, int] = Factory(dict)
    diagnostics: list[Diagnosis] = Factory(list)
    capture: str = ""  # of ncu: the report's name without its ending
    planned: str = ""  # of ncu: the planned capture that it was for
    alternative: str = ""  # of ncu: the alternative of that capture which it is; none: it is as planned
    replay_mode: str = ""  # of ncu


@define
class Manifest:
    """What `manifest.json` holds."""

    llm_perf_opt: str
    started_at: str
    command: list[str]  # what was typed, cleaned
    state: str = "running"  # "running" | "done" | "failed" | "interrupted"
    finished_at: str | None = None
    seconds: float | None = None  # by a monotonic clock; the two times above are the wall's
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
    rank: int | None = None  # of a job with one llm-perf a rank
    node: str = ""  # what its launcher calls the machine
    folder: str = ""  # where it was started: relative paths in its command begin there
    workload: list[str] = Factory(list)  # the program with its arguments, cleaned; none: `command` of an older version
    shows_command: bool = False  # of command lines only what looks like a secret is hidden
    program: dict[str, str] = Factory(dict)  # files named in the command, with the SHA-256 of each
    captures: list[dict[str, Any]] | None = None  # what ncu is asked for, in order; None: not decided yet
    earlier_steps: list[Step] = Factory(list)  # that were taken again when the run was resumed
    resumed: list[dict[str, Any]] = Factory(list)
    compressed: dict[str, dict[str, Any]] = Factory(dict)  # file of the run → what it is packed as
    signature: str = ""  # of the launch spec

    @property
    def launch_spec(self) -> dict[str, Any]:
        """What is started when the run is resumed, and how."""
        spec = {"settings": self.settings, "folder": self.folder, "captures": self.captures}
        return {"command": self.workload or self.command, **spec}

    @property
    def is_ours(self) -> bool:
        """Is the launch spec what this user asked for on this machine?"""
        return is_signed(self.launch_spec, self.signature)


def without_strange_numbers(value: Any) -> Any:
    """Settings as JSON can hold them: a model's configuration may have infinities, and JSON has none."""
    if isinstance(value, Mapping):
        return {name: without_strange_numbers(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_strange_numbers(item) for item in value]
    return f"{NOT_KEPT} {value}" if isinstance(value, float) and not math.isfinite(value) else value


def manifest_text(manifest: Manifest) -> str:
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
        refuse_deep(content, _DEEPEST)
        return _converter().structure(content, Manifest)
    except OSError as error:
        raise UserError(
            f"{run} is not a run directory of llm-perf: {error.strerror or error}.",
            "Give the folder that llm-perf profile made. See: llm-perf runs list",
        ) from error
    # What is untrusted may fail in any way; OverflowError: a whole number too large for seconds.
    except (
        *(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError),
        cattrs.BaseValidationError,
    ) as error:
        raise UserError(
            f"The manifest of {run} is damaged: it is not what llm-perf writes.",
            f"Its recordings can still be reported: llm-perf report {shlex.quote(str(run))}",
        ) from error


@lru_cache(maxsize=1)
def _converter() -> cattrs.Converter:
    """Converts nothing: a text where a number belongs is damage."""
    import cattrs

    def exactly(kind: type, *kinds: type) -> Callable[[Any, Any], Any]:
        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise TypeError(f"{value!r} is not {kind.__name__}")
            return kind(value)

        return structure

    converter = cattrs.Converter(detailed_validation=False)
    for kind, *kinds in ((str, str), (bool, bool), (int, int), (float, float, int)):
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
    """The time, as manifests write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
