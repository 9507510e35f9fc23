"""From two sides to a comparison on disk; `Report.compare` and the command line both go through here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from llm_perf_opt.comparing import junit
from llm_perf_opt.comparing.budgets import Limit, check_budgets
from llm_perf_opt.comparing.comparison import Comparison
from llm_perf_opt.comparing.comparison_md import MARK, render_comparison_md
from llm_perf_opt.comparing.evaluation import Settings, compare
from llm_perf_opt.comparing.floors import learn, learned_spreads
from llm_perf_opt.report.files import begins_with, make_folder, replaceable, write_text

if TYPE_CHECKING:
    from llm_perf_opt.comparing.side import Side

_JSON = b'{\n "schema_version": '
_HTML = b"<!doctype html>\n<!-- llm-perf compare -->"


def compare_sides(
    base: Side,
    new: Side,
    *,
    min_change: float = 0.02,
    exact: bool = False,
    limits: Sequence[Limit] = (),
    learns: bool = False,
) -> Comparison:
    """`limits`: budgets of the new side. `learns`: keep how far the two are apart as the noise of this program."""
    found = compare(base, new, Settings(min_change, exact, learned_spreads(new)))
    if learns:
        count = learn(found, new)
        found = attrs.evolve(found, notes=[*found.notes, f"Noise of {count} regions was learned from these two runs."])
    return attrs.evolve(found, budgets=check_budgets(list(limits), new, found.regions)) if limits else found


def write_comparison(found: Comparison, out: Path, *, inputs: Sequence[Path] = (), force: bool = False) -> list[Path]:
    """All formats into one folder; files that are not ours stay, unless `force` is given."""
    from llm_perf_opt.comparing.comparison_page import render_comparison_html

    texts = {
        "compare.json": json.dumps(found.as_json(), indent=1, allow_nan=False) + "\n",
        "compare.md": render_comparison_md(found),
        "compare.xml": junit.render_junit(found),
        "compare.html": render_comparison_html(found),
    }
    return write_files(texts, out, inputs=inputs, force=force)


def write_files(texts: Mapping[str, str], out: Path, *, inputs: Sequence[Path] = (), force: bool = False) -> list[Path]:
    """Files of ours into a folder; those of others stay, or are named where `force` has them replaced."""
    for path in replaceable([out / name for name in texts], is_ours, inputs=inputs, force=force):
        print(f"Replacing {path}, which llm-perf did not write.", file=sys.stderr)
    make_folder(out, "--out")
    return [write_text(out / name, text) for name, text in texts.items()]


def is_ours(path: Path) -> bool:
    """A file that a comparison wrote, by its beginning."""
    return begins_with(path, _JSON, MARK.encode(), junit.MARK.encode(), _HTML)
