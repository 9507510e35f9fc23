"""Other people's libraries, programs and variables: `known.toml`, read once."""

from __future__ import annotations

import functools
import re

import cattrs
from attrs import define

from llm_perf_opt.package_data import read_toml


@define(frozen=True)
class Program:
    """A program that may be in the way."""

    name: str  # a regular expression
    what: str
    stop: str


@define(frozen=True)
class Variable:
    """An environment variable that changes what is measured."""

    name: str
    why: str
    fix: str
    harmless: tuple[str, ...] = ("",)


@define(frozen=True)
class Known:
    libraries: dict[str, dict[str, str]]  # library → family of the system → package
    programs: tuple[Program, ...]
    variables: tuple[Variable, ...]


@functools.cache
def known() -> Known:
    return cattrs.structure(read_toml(__package__, "known.toml"), Known)


def program_called(name: str) -> Program | None:
    """The known program with this name."""
    return next((program for program in known().programs if re.fullmatch(program.name, name)), None)
