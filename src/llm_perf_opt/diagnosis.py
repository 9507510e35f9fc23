"""What a reader must know about a result, as a value until it is shown; its words are in `diagnoses.toml`."""

from __future__ import annotations

from functools import cache
from string import Formatter

from attrs import define


@define
class Diagnosis:
    """Something the reader must know about a result: what, how bad, why, and the next thing to do."""

    code: str
    severity: str  # "info" | "warning" | "error"
    message: str
    fix: str = ""


@define(frozen=True, kw_only=True)
class Wording:
    """One table of the catalogue; the head of `diagnoses.toml` says what each field means."""

    code: str
    section: str
    severity: str
    message: str
    fix: str = ""
    meaning: str = ""
    advice: str = ""


class _Words(Formatter):
    """Percentages as everywhere: `{share:.0%}` is `42 %`."""

    def format_field(self, value: object, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec)
        return f"{text[:-1]} %" if format_spec.endswith("%") else text


def diagnose(name: str, /, **values: object) -> Diagnosis:
    """A diagnosis of the catalogue: `name` is its code, or `CODE.variant`; `values` fill in its words."""
    wording = catalogue()[name]
    words = _Words()
    return Diagnosis(
        wording.code, wording.severity, *(words.format(text, **values) for text in (wording.message, wording.fix))
    )


@cache
def catalogue() -> dict[str, Wording]:
    """All that can be said, by name; read when something is said for the first time."""
    from llm_perf_opt.package_data import read_toml  # here: a command that has nothing to say does not read it

    sections = read_toml(__package__, "diagnoses.toml")
    found = {}
    for section, tables in sections.items():
        for name, table in tables.items():
            code = name.partition(".")[0]
            found[name] = Wording(code=code, section=section, **(tables.get(code, {}) | table))
    return found
