"""The levers there are: what each is, read from its file without running it.

A lever is a Python file (`inject/payload/_llm_perf_annotate/levers`, or a user's own) with constants and two functions.
It runs inside the program and nowhere else; here only its constants are read, as literals.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.inject import LEVERS
from llm_perf_opt.spelling import nearest
from llm_perf_opt.untrusted import read_text

_LARGEST = 1_000_000
_FUNCTIONS = {"apply", "evidence"}


@define(frozen=True)
class Lever:
    """One way to make a program faster from outside."""

    name: str
    file: Path
    about: str = ""  # what it does in the process
    title: str = ""
    rules: tuple[str, ...] = ()  # of the answer's fixes, that ask for it
    needs: tuple[str, ...] = ()  # what the program has to do, or the lever changes nothing
    unless: tuple[str, ...] = ()  # what makes it a bad idea, though it may be asked for by name
    general: bool = False  # worth a try where no fix asks for it
    changes: str = ""  # what it may change in the results
    precision: str = ""  # the one it computes in, where that is less than the program's
    excludes: tuple[str, ...] = ()  # levers that cannot be pulled with it
    environment: dict[str, str] = Factory(dict)  # set before the program starts
    warmup_s: float = 0.0  # about what it takes to compile, once
    patch: str = ""  # how to write it in one's own code
    own: bool = False  # a file of the user
    command: tuple[str, ...] = ()  # the program is started so, in place of anything that is done inside it
    items: float = 1.0  # so many times the work is in each step

    def goes_with(self, other: Lever) -> bool:
        return other.name not in self.excludes and self.name not in other.excludes


# What rounds outputs without being a lever: see `output_comparison`.
ROUNDING = Lever("_rounding", LEVERS / "_rounding.py")


@cache
def all_levers() -> dict[str, Lever]:
    """Those of the package, by name."""
    files = sorted(path for path in LEVERS.glob("*.py") if not path.name.startswith("_"))
    return {lever.name: lever for lever in map(read_lever, files)}


def named_levers(words: Sequence[str]) -> list[Lever]:
    """Names of levers, and files of the user's own."""
    found = []
    for word in dict.fromkeys(words):
        if word.endswith(".py"):
            found.append(read_lever(Path(word).absolute(), own=True))
        elif word in all_levers():
            found.append(all_levers()[word])
        else:
            raise UserError(
                f"There is no lever {word!r} (did you mean {nearest(word, all_levers(), 1)[0]}?).",
                "See them all: llm-perf try --list. A file of your own ends in .py.",
            )
    return found


def read_lever(file: Path, *, own: bool = False) -> Lever:
    """What a file says of itself."""
    try:
        tree = ast.parse(read_text(file, _LARGEST))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"The lever {file} cannot be read: {error}.", "Check the path and the file.") from error
    missing = _FUNCTIONS - {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing:
        raise UserError(
            f"{file} is not a lever: it has no function {' and no function '.join(sorted(missing))}.",
            "A lever has apply(program) and evidence(program); see docs/try.md.",
        )
    facts = _constants(tree)
    name = file.stem.replace("_", "-")
    try:
        return Lever(
            name=name,
            file=file,
            about=(ast.get_docstring(tree) or "").strip(),
            title=str(facts.get("TITLE", name)),
            rules=_words(facts.get("RULES", ())),
            needs=_words(facts.get("NEEDS", ())),
            unless=_words(facts.get("UNLESS", ())),
            general=bool(facts.get("GENERAL", False)),
            changes=str(facts.get("CHANGES", "not known")),
            precision=str(facts.get("PRECISION", "")),
            excludes=_words(facts.get("EXCLUDES", ())),
            environment={str(k): str(v) for k, v in dict(facts.get("ENVIRONMENT", {})).items()},
            warmup_s=float(facts.get("WARMUP_S", 0.0)),
            patch=str(facts.get("PATCH", "")),
            own=own,
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"The constants of the lever {file} make no sense: {error}.", "See docs/try.md.") from error


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Names in capitals that are set to literals."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper() and not name.startswith("_"):
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    return found
