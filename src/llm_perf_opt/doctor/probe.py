"""Small questions to the machine, which never raise: a short command, a file of /proc, a path without the user's name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.process import ask as process
from llm_perf_opt.process.ask import Answer

_MOST_OUTPUT = 20_000


def ask(argv: list[str], environment: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Answer:
    """Run a short command."""
    found = process.ask(argv, environment=environment, timeout_s=timeout_s)
    words = [shortened(word) for word in argv]
    return Answer(words, found.exit_code, found.output[-_MOST_OUTPUT:], found.errors[-_MOST_OUTPUT:])


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
