"""Whose code a file is: the program's own, or that of a library. The rule is `own_code.json`, also used inside the program."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any


@cache
def _rule() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath("own_code.json").read_text(encoding="utf-8"))
    return found


@cache
def _expression(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(_rule()[kind]))


@lru_cache(maxsize=8192)
def is_own(file: str) -> bool:
    """Is this file the program's or the model's own?"""
    return not _expression("library").search(file) or bool(_expression("model").search(file))


@lru_cache(maxsize=8192)
def is_users(file: str) -> bool:
    """Is this file the program's own, and no model that comes with a library?"""
    return not _expression("library").search(file)


def library_name(file: str, function: str) -> str:
    """Of a function of a library that says more than the line that calls it; empty for all others."""
    named = (name for end, of, name in _rule()["named"] if function == of and file.endswith(end))
    return next(named, "")
