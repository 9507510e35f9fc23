"""One option: how it is spelled in either front end, what it may be, and where its value goes."""

from __future__ import annotations

import math
import os
import re
from typing import Any, Generic, Literal, TypeVar

from attrs import define, field

from llm_perf_opt.errors import UserError
from llm_perf_opt.options.values import bytes_of, parse_seconds
from llm_perf_opt.spelling import nearest

Kind = Literal[
    "switch", "number", "count", "seconds", "duration", "size", "text", "kernel", "kernel_id", "instances", "list",
    "patterns", "assignments", "mapping",
]  # fmt: skip
TEXTS = ("text", "kernel", "kernel_id", "instances")  # kinds that are one text
ALLOWED = {
    "switch": "true or false",
    "number": "a whole number, 0 or more",
    "count": "a whole number above 0",
    "seconds": "a number of seconds above 0",
    "duration": "a time, as in 60s or 2m",
    "size": "a size, as in 2GB or 500MB",
    "text": "a text",
    "kernel": "an exact name, or regex: with a regular expression behind it",
    "kernel_id": "context:stream:name:invocation, parts of which may be empty",
    "instances": "instances in ncu's own form, as in ::[2-4]",
    "list": "a list, or a text with commas",
    "patterns": "a list, or one pattern",
    "assignments": "NAME=VALUE",
    "mapping": "names with values, as in {a: 1}",
}


T = TypeVar("T")  # what its value is once it was read: `2GB` is an int, `60s` a float


def _places(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


@define(frozen=True, eq=False, kw_only=True)  # compared by identity: values are kept by option
class Option(Generic[T]):
    """An option of the command line (`flag`), a key of the configuration (`key`), or both."""

    flag: str = ""
    key: str = ""
    kind: Kind = "text"
    default: Any = None
    choices: tuple[str, ...] = ()
    help: str = ""
    # A field of the request, as in `counters.level`. Empty: the place where it acts asks `request.value(OPTION)`.
    to: tuple[str, ...] = field(default=(), converter=_places)
    verbs: tuple[str, ...] = ()  # of the command line
    short: str = ""  # another flag
    either: bool = False  # at most one of the verb's options of this kind can be given
    metavar: str = ""
    flag_help: str = ""  # where a flag says the opposite of its key
    given: Any = None  # of a switch on the command line: what it sets; None: the opposite of the default
    instead: str = ""  # what the runners type in its place, where no key is the same option
    nullable: bool = field()  # may a key be left open?
    on_resume: bool = False  # may be given with --resume; all others come from the run

    @nullable.default
    def _nullable(self) -> bool:
        return self.default is None

    @property
    def dest(self) -> str:
        """Its name among parsed arguments and in a manifest."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def unset(self) -> Any:
        """Its parsed value where the command line does not have it."""
        if self.kind == "list" and self.default is not None:
            return ",".join(self.default)  # typed as one text
        return False if self.kind == "switch" else self.default

    @property
    def setting(self) -> str:
        """What the runners type in place of the flag."""
        if self.instead or self.kind != "switch":
            return self.instead or self.key
        return f"{self.key}={'false' if self.default else 'true'}" if self.key else ""

    @property
    def allowed(self) -> str:
        """What it may be, for people."""
        words = ", ".join(self.choices) if self.choices else ALLOWED[self.kind]
        return f"{words}; null leaves it open" if self.nullable else words

    def check(self, value: Any) -> None:
        """Refuse what the key cannot be: the key, what is allowed, and the nearest of it."""
        if value is None and self.nullable:
            return
        shown = f"{self.key}={_shortened(value)}"
        if not fits(self.kind, value):
            raise UserError(f"{shown} does not fit.", f"Allowed: {self.allowed}.")
        if self.choices and value not in self.choices:
            close = nearest(str(value), self.choices, 1)[0]
            raise UserError(f"{shown} is not known.", f"Allowed: {self.allowed}. Did you mean {close}?")

    def could_be_typed(self, value: Any) -> bool:
        """Could the command line have given this parsed value? What a manifest holds may be anything."""
        if value is None:
            return self.unset is None
        if isinstance(self.unset, list):
            return isinstance(value, list) and all(map(could_be_typed, value))
        if self.kind not in ("switch", "number", "count", "seconds") and not could_be_typed(value):
            return False
        return fits(self.kind, value) and (not self.choices or value in self.choices)


def could_be_typed(text: object) -> bool:
    """Can a command line hold this text? Not a zero byte, and no half of a character."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def fits(kind: Kind, value: Any) -> bool:
    """Is it a value of this kind?"""
    if kind == "switch":
        return isinstance(value, bool)
    if kind == "mapping":
        return isinstance(value, dict)
    if kind in ("list", "patterns", "assignments"):
        return isinstance(value, (list, str))
    if kind in TEXTS:
        is_text = isinstance(value, (str, int, float, bool))  # YAML reads some words as numbers
        return is_text and (kind == "text" or _is_filter(kind, str(value)))
    if kind in ("number", "count"):
        return isinstance(value, int) and not isinstance(value, bool) and value >= (kind == "count")
    if kind == "seconds":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    try:
        bytes_of(value) if kind == "size" else parse_seconds(str(value))
    except UserError:
        return False
    return not isinstance(value, bool)


def _is_filter(kind: Kind, text: str) -> bool:
    """Could ncu make something of it? It would profile nothing with another one, and not say why."""
    if kind != "kernel":
        return text.count(":") >= (3 if kind == "kernel_id" else 2)
    try:
        re.compile(text.removeprefix("regex:") if text.startswith("regex:") else "")
    except re.error:
        return False
    return True


def _shortened(value: object) -> str:
    text = ascii(value) if not isinstance(value, str) else value
    return text if len(text) <= 80 else f"{text[:80]}…"
