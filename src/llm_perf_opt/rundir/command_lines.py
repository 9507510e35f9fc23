"""Command lines as they are written down, everywhere: option names stay, and of values what is plain.

A hidden value stands as `(hidden: $NAME)`, NAME made from its option; for a shell it becomes the variable of that name.
Words that are cleaned already stay as they are, so nothing is hidden twice under another name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.files import finished_name
from llm_perf_opt.options import KEYS
from llm_perf_opt.regions.shell import shell_word
from llm_perf_opt.rundir.plain_values import is_identifier, is_known_word, is_number, is_plain
from llm_perf_opt.rundir.secrets import (
    FREE_KEYS,
    is_kept_variable,
    is_secret,
    is_secret_name,
    kept_environment,
    parts_of,
)

HIDDEN = re.compile(r"\(hidden: \$([A-Z_][A-Z0-9_]*)\)")
# Variables that mean something to the shell or to every program: a value must not take their place.
_OF_THE_SHELL = "PATH HOME USER SHELL PWD IFS ENV TERM LANG TMPDIR PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD OUT"
_TAKEN = frozenset(_OF_THE_SHELL.split())
_KEY = re.compile(r"[-+~]*[\w.@/+-]+")
_ASSIGNMENT = re.compile(r"([-+~]*[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_SHORT_SECRETS = frozenset("pPkKtTaAsSwWuU")  # -p, -u and so on: often a password, a key, a user with both
_ATTACHED = frozenset("pPu")  # with the value right behind
_MADE_BEFORE = ("-windows.json", ".config", "config.yaml")  # what a command of a run reads of it
_FILE = re.compile(r"/|\.[A-Za-z]\w{0,9}$")


def clean_argv(argv: Sequence[str], *, show: bool = False) -> list[str]:
    """A command line as it may be written down. `show`: hide only what looks like a secret."""
    return _Cleaner(show).clean(argv)


def clean_step(argv: Sequence[str], program: Sequence[str], *, show: bool = False) -> list[str]:
    """A command of ours, or of a profiler, that runs a program of the user: our own words are not hidden."""
    end = len(argv) - len(program)
    if not program or list(argv[end:]) != list(program):
        return clean_argv(argv, show=True)
    return [*clean_argv(argv[:end], show=True), *clean_argv(program, show=show)]


def clean_typed(typed: Sequence[str], program: Sequence[str], *, show: bool = False) -> list[str]:
    """What the user typed to have a program run. Our own options are not hidden, nor are values of declared keys."""
    if program and list(typed[-len(program) :]) == list(program):
        return clean_step(typed, program, show=show)
    cleaner = _Cleaner(show)
    return [_clean_override(cleaner, word, shown) for word, shown in zip(typed, cleaner.clean(typed), strict=True)]


def _clean_override(cleaner: _Cleaner, word: str, shown: str) -> str:
    """A key of ours with its value; any other word as it is `shown` already."""
    key, equals, value = word.partition("=")
    name = key.lstrip("+~")
    if name in KEYS and not name.startswith(FREE_KEYS):
        return clean_argv([word], show=True)[0]
    if equals and name in FREE_KEYS and value.startswith("[") and value.endswith("]"):
        words = [part.strip().strip("'\"") for part in value[1:-1].split(",")]
        return f"{key}=[{','.join(cleaner.clean(words))}]"
    return shown


def _is_file(value: str) -> bool:
    """Names with spaces read like a sentence; one that is there is the name of a file."""
    return _FILE.search(value) is not None and os.path.exists(value)  # noqa: PTH110 - a word may be no path at all


def hides_something(words: Sequence[str]) -> bool:
    return any(map(HIDDEN.search, words))


def hidden_values(argv: Sequence[str], *, show: bool = False) -> Iterator[tuple[str, str]]:
    """What is hidden in a command line, with the variable that stands for it; also the parts of such values."""
    for word, shown in zip(argv, clean_argv(argv, show=show), strict=True):
        if word != shown and (found := HIDDEN.search(shown)):
            value = word[found.start() : len(word) - (len(shown) - found.end())]
            yield from ((part, f"${found[1]}") for part in parts_of(value))


def shell_text(words: Sequence[str]) -> str:
    """A cleaned command line for people and shells: hidden values are variables."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    at, parts = 0, []
    for found in HIDDEN.finditer(word):
        parts += [shell_word(word[at : found.start()])] if found.start() > at else []
        parts.append(f'"${found[1]}"')
        at = found.end()
    return "".join(parts) + (shell_word(word[at:]) if at < len(word) or not word else "")


def pasted_line(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str,
    run: Path,
    runs_program: bool = True,
    printed: Path | None = None,
) -> str:
    """A cleaned command as a line for a POSIX shell that repeats it from anywhere, with the environment it had.

    What it wrote below the run goes to the folder where the line is pasted, or to $OUT; what was made for it beforehand
    stays where it is. `folder`: where it was started. `runs_program`: the user's,
    which may depend on any variable. `printed`: the file that has what it prints.
    """
    place = _Place(Path(folder), run)
    line = [f"cd {shell_word(folder)}", "&&", "env"]
    inherited = kept_environment(os.environ) if runs_program else {}
    left_out = {name for name in inherited if name.startswith("LLM_PERF_")} | set(environment)
    line += [f"{name}={place.word(value)}" for name, value in inherited.items() if name not in left_out]
    for name, value in environment.items():
        theirs = os.environ.get(name, "")
        if is_kept_variable(name, value) or not theirs:
            line.append(f"{name}={place.word(value)}")
        else:  # ours is before theirs, which may hold anything
            before, _, after = value.partition(theirs)
            line.append(f'{name}={shell_word(before)}"${name}"{shell_word(after) if after else ""}')
    line += map(place.word, words)
    line += [">", place.word(str(printed.absolute()))] if printed is not None else []
    first = [
        f': "${{{name}:?is hidden here, set it first}}" &&' for name in dict.fromkeys(HIDDEN.findall(" ".join(words)))
    ]
    return " ".join(["(" + " ".join([*first, 'OUT=$(cd "${OUT:-.}" && pwd)', "&&", *line]) + ")"])


class _Place:
    """Paths below a run directory, as they are called from elsewhere."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.folder = folder
        self.runs = {Path(os.path.normpath(folder / run)), (folder / run).resolve()}

    def word(self, word: str) -> str:
        path = Path(os.path.normpath(self.folder / word)) if "/" in word and "\0" not in word else None
        if path is None or not any(map(path.is_relative_to, self.runs)):
            return _shell_word(word)
        if path.name.endswith(_MADE_BEFORE):
            return shell_word(str(path))
        below = "" if path in self.runs else shell_word(f"/{finished_name(path.name) or path.name}")
        return f'"$OUT"{below}'


class _Cleaner:
    def __init__(self, show: bool) -> None:
        self.show = show
        self.names: set[str] = set()

    def clean(self, argv: Sequence[str]) -> list[str]:
        self.names |= {name for word in argv for name in HIDDEN.findall(word)}
        result = []
        option = ""  # the last word, where it may want a value
        for number, word in enumerate(argv):
            result.append(self._word(word, option, number))
            option = word if word.startswith("-") and "=" not in word and len(word.lstrip("-")) > 0 else ""
        return result

    def _word(self, word: str, option: str, number: int) -> str:
        if HIDDEN.search(word):
            return word
        if option and is_secret_name(option.lstrip("-")) and not word.startswith("--"):
            return word if is_known_word(word) else self._hide(option)
        if (parts := _ASSIGNMENT.fullmatch(word)) and parts[2].strip("="):
            return self._assignment(parts[1], parts[2], option or f"argument {number}")
        if word.startswith("-") and not is_number(word):
            return self._option(word)
        return word if self._is_shown(option, word) else self._hide(option or f"argument {number}")

    def _assignment(self, name: str, value: str, place: str) -> str:
        named = _KEY.fullmatch(name) and all(map(is_identifier, filter(None, re.split(r"[-+~@/.]", name))))
        if not named and not self.show:
            return self._hide(place)
        return f"{name}={value}" if self._is_shown(name, value) else f"{name}={self._hide(name)}"

    def _option(self, word: str) -> str:
        name = word.lstrip("-")
        if self.show:
            return self._hide("argument") if is_secret("", word) else word
        attached = not word.startswith("--") and len(word) > 2 and word[1] in _ATTACHED and not is_known_word(name[1:])
        if attached and not is_number(word[2:]):
            return word[:2] + self._hide(word[:2])
        return word if not name or is_identifier(name) else f"-{self._hide('option')}"

    def _is_shown(self, name: str, value: str) -> bool:
        name = name.lstrip("-+~")
        if self.show or is_secret(name, value):
            return not value or is_known_word(value) or not is_secret(name, value)
        if len(name) == 1 and name in _SHORT_SECRETS and not (is_known_word(value) or is_number(value)):
            return is_plain(value) and _FILE.search(value) is not None
        return is_plain(value) or _is_file(value)

    def _hide(self, name: str) -> str:
        base = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") or "ARGUMENT"
        base = f"_{base}" if base[0].isdigit() else f"{base}_VALUE" if base in _TAKEN else base
        variable, count = base, 1
        while variable in self.names:
            count += 1
            variable = f"{base}_{count}"
        self.names.add(variable)
        return f"(hidden: ${variable})"
