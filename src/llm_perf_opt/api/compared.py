"""What `Report.compare` gives: the comparison as data frames, a page and a summary."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import define, field

from llm_perf_opt.api.frames import DataFrame, data_frame
from llm_perf_opt.comparing.comparison import Comparison
from llm_perf_opt.regions.names import visible


@define(repr=False, slots=False)
class Compared:
    """Two reports; `data` is the comparison as `compare.json` has it."""

    data: Comparison = field(eq=False)

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `same`, `unsure` or `not_comparable`."""
        return self.data.verdict

    @property
    def reasons(self) -> list[str]:
        return self.data.reasons

    @property
    def sentences(self) -> list[str]:
        """What changed and why, the largest change first."""
        return self.data.sentences

    @cached_property
    def regions(self) -> DataFrame:
        """One row per region; one that only one side has has no value on the other."""
        rows: list[dict[str, Any]] = [
            {
                "region": r.key,
                "verdict": r.verdict,
                "before_ns": r.before_ns,
                "after_ns": r.after_ns,
                "change": r.change,
                "low": r.interval[0] if r.interval else None,
                "high": r.interval[1] if r.interval else None,
                "reason": r.reason,
            }
            for r in self.data.regions
        ]
        names = ("region", "verdict", "before_ns", "after_ns", "change", "low", "high", "reason")
        for word, keys in (("gone", self.data.only_base), ("new", self.data.only_new)):
            rows += [dict.fromkeys(names) | {"region": key, "verdict": word, "reason": ""} for key in keys]
        return data_frame({name: [row[name] for row in rows] for name in names})

    @cached_property
    def causes(self) -> DataFrame:
        """One row per region and cause; those of a region add up to its change."""
        rows = [(r.key, c.kind, c.what, c.delta_ns) for r in self.data.regions for c in r.causes]
        return data_frame(
            {name: [row[n] for row in rows] for n, name in enumerate(("region", "kind", "what", "delta_ns"))}
        )

    @cached_property
    def exact(self) -> DataFrame:
        """One row per region and what is counted in it."""
        rows = [(r.key, e.what, e.before, e.after, e.changed) for r in self.data.regions for e in r.exact]
        return data_frame(
            {name: [row[n] for row in rows] for n, name in enumerate(("region", "what", "before", "after", "changed"))}
        )

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the page; a file there that is no page of a comparison stays."""
        from llm_perf_opt.api.comparing_sides import is_ours
        from llm_perf_opt.comparing.comparison_page import render_comparison_html
        from llm_perf_opt.report.files import make_folder, replaceable, write_text

        target = Path(path)
        replaceable([target], is_ours)
        make_folder(target.parent)
        return write_text(target, render_comparison_html(self.data))

    def to_markdown(self) -> str:
        from llm_perf_opt.comparing.comparison_md import render_comparison_md

        return render_comparison_md(self.data)

    def __repr__(self) -> str:
        first = f": {self.sentences[0]}" if self.sentences else ""
        return f"<Compared {self.verdict}{visible(first, 300) if first else ''}>"
