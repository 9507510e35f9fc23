"""Colours of kernel families, the same in every chart of the page and in the pictures beside it."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

OTHER = "other"


@cache
def family_colours() -> dict[str, tuple[str, str]]:
    """Family -> colour on a light and on a dark page."""
    text = files("llm_perf_opt.report").joinpath("palette.toml").read_text(encoding="utf-8")
    return {name: (light, dark) for name, (light, dark) in tomllib.loads(text)["families"].items()}


def family_colour(family: str) -> tuple[str, str]:
    """The colours of a family; those of `other` where it has none of its own."""
    colours = family_colours()
    return colours.get(family, colours[OTHER])
