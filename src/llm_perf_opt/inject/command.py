"""Which commands cannot be annotated, reported before they run: injection needs a Python that reads its environment."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

_PYTHON = re.compile(r"(?:python|pypy)w?[\d.]*t?(?:\.exe)?", re.IGNORECASE)
# Python's options that take the next word along.
_TAKE_A_VALUE = frozenset("WX")
_ENDS_OPTIONS = frozenset("cm")
_HINDERS = {
    "I": "isolates it from the environment",
    "E": "makes it ignore PYTHONPATH",
    "S": "keeps it from running start-up code",
}
# Programs that start another one: what they start is not known without running them, so nothing is reported.
_LAUNCHERS = (
    *("sh", "bash", "dash", "zsh", "fish", "perl", "make", "script", "xargs"),
    *("env", "nice", "nohup", "numactl", "taskset", "timeout", "time", "stdbuf", "setsid", "chrt", "ionice"),
    *("uv", "uvx", "poetry", "pixi", "conda", "mamba", "micromamba", "hatch", "pdm", "pipenv", "nix"),
    *("srun", "mpirun", "mpiexec", "orterun", "prun"),
)
_MOST_LINKS = 4  # of scripts that name another script as their interpreter


def problems(command: Sequence[str]) -> list[str]:
    """Reasons why `command` will not be annotated, with the fix; empty where nothing speaks against it."""
    words = _without_prefix(list(command))
    if not words:
        return []
    found = [
        f"env {word} takes the annotation off PYTHONPATH. "
        f"Set PYTHONPATH for llm-perf instead, as in: {word} llm-perf profile …"
        for word in command[: len(command) - len(words)]
        if word.startswith("PYTHONPATH=")
    ]
    argv = _interpreted(words)
    name = Path(argv[0]).name
    if name == "sudo":
        found.append("sudo starts programs without PYTHONPATH: they are not annotated. Run llm-perf itself with sudo.")
    elif _PYTHON.fullmatch(name):
        found += [
            f"{argv[0]} -{option} {_HINDERS[option]}, so it cannot be annotated. Leave -{option} out."
            for option in _options(argv[1:])
            if option in _HINDERS
        ]
    elif name not in _LAUNCHERS:
        found.append(
            f"{words[0]} is not a Python program: --annotate finds no models in it, "
            "except in Python programs that it starts."
        )
    return found


def _without_prefix(words: list[str]) -> list[str]:
    """The command behind `env A=B …`."""
    if words and Path(words[0]).name == "env":
        rest = words[1:]
        while rest and (re.fullmatch(r"\w+=.*", rest[0], re.DOTALL)):
            rest = rest[1:]
        if rest and not rest[0].startswith("-"):
            return rest
    return words


def _interpreted(words: list[str]) -> list[str]:
    """The command line that the system makes of `words`: a script's interpreter, from its first line, comes first."""
    argv = words
    for _ in range(_MOST_LINKS):
        first = None if _PYTHON.fullmatch(Path(argv[0]).name) else _first_line(argv[0])
        if first is None:
            break
        argv = [*first, *argv]
    return argv


def _first_line(program: str) -> list[str] | None:
    """`#!/usr/bin/env python` of a script, as words."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        with Path(found).open("rb") as file:
            line = file.readline(4096)
            # A virtual environment with a long path has its scripts begin as a shell script that starts Python.
            following = file.readline(4096)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    if following.startswith(b"'''exec'") or following.startswith(b"''':'"):
        line = b"#!" + following.partition(b" ")[2]
    try:
        words = shlex.split(line[2:].decode(errors="replace"))
    except ValueError:
        return None
    if words and Path(words[0]).name == "env":
        words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
    return words or None


def _options(words: Sequence[str]) -> Iterator[str]:
    """Single-letter options that Python itself would read."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            return
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            continue
        for place, letter in enumerate(word[1:], 2):
            yield letter
            if letter in _ENDS_OPTIONS:
                return
            if letter in _TAKE_A_VALUE:
                if place == len(word) and rest:
                    rest.pop(0)
                break
