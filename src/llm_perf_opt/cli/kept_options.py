"""Options of a run as its manifest keeps them: taken over only where a command line could have given them.

A manifest may come from anybody, and what is wrong in it must be told before anything is started.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.errors import UserError


def options_from(settings: Mapping[str, Any], parser: argparse.ArgumentParser, run: str) -> dict[str, Any]:
    """What `parser` would have given; a setting that it does not know is left out, one it would refuse is an error."""
    found = {}
    for action in parser._actions:
        if action.dest in settings:
            value = settings[action.dest]
            if not _could_be_given(action, value):
                raise UserError(
                    f"The options of {run} are not those of a run: {action.dest} is {_short(value)}.",
                    "Start a new run.",
                )
            found[action.dest] = value
    return found


def could_be_typed(text: object) -> bool:
    """Can a command line hold this text? Not a zero byte, and no half of a character."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _could_be_given(action: argparse.Action, value: object) -> bool:
    if action.nargs == 0:  # a switch
        return isinstance(value, bool)
    if isinstance(action.default, list):
        return isinstance(value, list) and all(map(could_be_typed, value))
    if value is None:
        return action.default is None
    if action.type is None:
        return could_be_typed(value) and (action.choices is None or value in action.choices)
    return _is_number_for(action.type, value)


def _is_number_for(convert: Any, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return bool(convert(str(value)) == value)
    except (argparse.ArgumentTypeError, ValueError):
        return False


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
