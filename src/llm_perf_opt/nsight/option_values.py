"""What the option classes of both profilers share: values as people write them, and mistakes answered by name.

Configuration comes from YAML, from Hydra overrides and from Python, so the same setting arrives as a
list, as a comma string, as a bool or as a number. It is brought into one form here, once. Converters
hand on what they cannot read; the validators then refuse it, because they know the setting's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from llm_perf_opt.errors import UserError
from llm_perf_opt.spelling import nearest

StrPath = str | os.PathLike[str]
_Options = TypeVar("_Options", bound=attrs.AttrsInstance)

_SWITCH_WORDS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


def text(value: Any) -> str | None:
    """One value, untouched; nothing and the empty string both mean "not given".

    An empty filter would be passed on as a filter that matches nothing. YAML reads a bare `no` as a bool.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def listed(value: Any) -> tuple[str, ...]:
    """Several values: a list, or a comma string. The items of a list are never split."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return _items(value)


def expressions(value: Any) -> tuple[str, ...]:
    """Several expressions in which a comma has a meaning of its own: a string is always one of them."""
    if value is None or value == "":
        return ()
    return (value,) if isinstance(value, str) else _items(value)


def count(value: Any) -> Any:
    """A whole number, also when written as text."""
    try:
        return int(value) if isinstance(value, str) and value else (None if value == "" else value)
    except ValueError:
        return value


def switch(value: Any) -> Any:
    """A bool, also when written as text; nothing means off."""
    if value is None:
        return False
    return _SWITCH_WORDS.get(value.lower(), value) if isinstance(value, str) else value


def is_count(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse what is no number of launches."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UserError(f"{attribute.name}={value!r} is not a number of launches.", "Give a whole number, 0 or more.")


def is_switch(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse what is neither on nor off."""
    if not isinstance(value, bool):
        raise UserError(f"{attribute.name}={value!r} is neither on nor off.", "Allowed values: true, false.")


def with_overrides(options: _Options, overrides: Mapping[str, Any], owner: str) -> _Options:
    """A copy of `options` with some settings changed; a setting that does not exist is answered with the nearest."""
    names = [attribute.name for attribute in attrs.fields(type(options))]
    for name in overrides:
        if name not in names:
            raise UserError(
                f"{owner} has no setting {name!r}.",
                f"Did you mean {nearest(name, names, 1)[0]!r}? The settings are: {', '.join(names)}.",
            )
    return type(options)(**{**attrs.asdict(options, recurse=False), **overrides})


def workload(work_argv: Sequence[StrPath], tool: str) -> list[str]:
    """The program to profile as an argv list; refuses what the profiler would not take for a program."""
    if isinstance(work_argv, (str, bytes)):
        raise UserError(
            "The program to profile was given as one string.",
            "Give a list, one element for each argument; no shell splits strings here.",
        )
    argv = [os.fspath(part) for part in work_argv]
    if not argv or not argv[0]:
        raise UserError("There is no program to profile.", "Give its command after --, as in: -- python script.py")
    if argv[0].startswith("-"):
        raise UserError(
            f"The command to profile begins with {argv[0]!r}, which {tool} would take for one of its options.",
            "Give the program first, then its arguments.",
        )
    return argv


def arguments(options: attrs.AttrsInstance, out_base: StrPath, extra: Sequence[str]) -> list[str]:
    """The settings that are given, in their order, each as `--name value` unless its metadata say otherwise.

    `flag`: another name, "" for none. `on`: words behind a switch that is on. `joined`: a list is one value with commas,
    this one where it is empty; other lists repeat the flag.
    """
    argv: list[str] = []
    for attribute in attrs.fields(type(options)):
        value, how = getattr(options, attribute.name), attribute.metadata
        flag = how.get("flag", flag_of(attribute.name))
        if value is None or value is False or not flag:
            continue
        if value is True:
            argv += [flag, *how.get("on", ())]
        elif "joined" in how:
            joined = ",".join(value) or how["joined"]
            argv += [flag, joined] if joined else []
        else:
            argv += [word for item in (value if isinstance(value, tuple) else [value]) for word in (flag, str(item))]
    return [*argv, "-o", os.fspath(out_base), *extra]


def flag_of(name: str) -> str:
    """`launch_skip` is `--launch-skip`."""
    return "--" + name.replace("_", "-")


def _items(value: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(item) for item in value if item is not None and item != "")
