"""The words a page uses and a newcomer may not know, kept as data (`glossary.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _words() -> tuple[dict[str, Any], ...]:
    text = files("llm_perf_opt.report").joinpath("glossary.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["word"])


def glossary(verdicts: Collection[str], *, timeline: bool, counters: bool) -> list[tuple[str, str]]:
    """The words of a page with these verdicts; others only where there is a timeline, or there are counters."""
    return [
        (word["name"], word["means"])
        for word in _words()
        if word["name"] in verdicts or (timeline and word.get("timeline")) or (counters and word.get("counters"))
    ]


def explained() -> set[str]:
    """All words that have an explanation."""
    return {word["name"] for word in _words()}
