"""What the profilers' messages mean: `messages.toml`, read once."""

from __future__ import annotations

import re
from typing import Any

from attrs import Factory, define, field
from attrs.converters import optional

from llm_perf_opt.errors import ExitCode
from llm_perf_opt.package_data import read_toml


@define(frozen=True, kw_only=True)
class Rule:
    """One message or state; the head of `messages.toml` says what each field means."""

    code: str
    cause: str
    fix: str
    severity: str = "error"
    exit_code: ExitCode = ExitCode.DONE
    tool: str = ""
    printed_by: str = "profiler"
    pattern: re.Pattern[str] | None = field(default=None, converter=optional(re.compile))
    with_options: re.Pattern[str] | None = field(default=None, converter=optional(re.compile))
    without_options: re.Pattern[str] | None = field(default=None, converter=optional(re.compile))
    without_line: re.Pattern[str] | None = field(default=None, converter=optional(re.compile))
    more_lines: int = 0
    hides: frozenset[str] = Factory(frozenset)
    needs_failure: bool = False
    warning_if_complete: bool = False
    no_data: bool = False
    example: str = ""
    origin: str = ""

    def applies(self, tool: str, options: str, lines: list[str], *, failed: bool) -> bool:
        """Whether its line is worth looking for: `options` of the profiler, `lines` of its log."""
        return (
            self.tool in ("", tool)
            and (failed or not self.needs_failure)
            and (self.with_options is None or bool(self.with_options.search(options)))
            and (self.without_options is None or not self.without_options.search(options))
            and (self.without_line is None or not any(map(self.without_line.search, lines)))
        )

    def find(self, lines: list[str]) -> list[tuple[int, re.Match[str]]]:
        """Where its line occurs."""
        return [(i, match) for i, line in enumerate(lines) if self.pattern and (match := self.pattern.search(line))]


_TABLE = read_toml(__package__, "messages.toml")
GROUPS: dict[str, list[str]] = _TABLE["groups"]  # of codes
TEXTS: dict[str, str] = _TABLE["texts"]


def _rule(raw: dict[str, Any]) -> Rule:
    hidden = {code for name in raw.pop("hides", []) for code in GROUPS.get(name, [name])}
    for part in ("cause", "fix"):
        for name, text in TEXTS.items():
            raw[part] = raw[part].replace(f"{{{name}}}", text)
    code = ExitCode[raw.pop("exit_code", "DONE")]
    return Rule(**raw, exit_code=code, hides=frozenset(hidden))


RULES = tuple(_rule(raw) for raw in _TABLE["message"])
STATES = {rule.code: rule for rule in map(_rule, _TABLE["state"])}
