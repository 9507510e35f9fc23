"""Small questions to the machine, which never raise: a short command, a file of /proc, a path without the user's name."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.doctor.machine_facts import Answer

_MOST_OUTPUT = 20_000
COMMAND_TIMEOUT_S = 30.0


def ask(argv: list[str], environment: Mapping[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
    """Run a short command."""
    words = [shortened(word) for word in argv]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return Answer(words, None, errors=f"it did not answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(words, None, errors=error.strerror or str(error))
    return Answer(words, done.returncode, done.stdout[-_MOST_OUTPUT:], done.stderr[-_MOST_OUTPUT:])


def shortened(path: str | os.PathLike[str]) -> str:
    """A path without the user's own folders in it."""
    text = os.fspath(path)
    for folder, sign in ((str(Path.cwd()), "."), (str(home()), "~")):
        if folder != "/":
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?=/|$|:)", sign, text)
    return text


def home() -> Path:
    """The home folder; `~`, which is not there, for a user without one (containers with a random user id)."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - pathlib raises where there is none


def answered(answer: Answer | None) -> bool:
    return answer is not None and answer.exit_code == 0 and bool(answer.output.strip())


def read_text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_number(path: str) -> int | None:
    try:
        return int((read_text(path) or "").strip())
    except ValueError:
        return None
