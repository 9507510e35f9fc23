"""A comparison as Markdown, fit for a pull request: the verdict, three sentences, a table; the rest folded away."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.comparing.comparison import Comparison, RegionComparison
from llm_perf_opt.comparing.exact import describe_exact
from llm_perf_opt.comparing.sentences import percent, signed
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.text import duration

MARK = "<!-- llm-perf compare -->"
# A region, the whole in a sentence, and the headline: by its times, and by what is counted alone (--exact).
_WORDS = {
    "better": ("faster", "{new} is faster than {base}.", "The new run is faster"),
    "worse": ("slower", "{new} is slower than {base}.", "The new run is slower"),
    "same": ("the same", "{new} is as fast as {base}.", "Nothing changed"),
    "unsure": ("unsure", "The data does not show whether {new} is faster than {base}.", "Unsure whether it changed"),
    "not_comparable": ("not comparable", "{new} and {base} cannot be compared.", "The two runs cannot be compared"),
}
_COUNTED = {
    "better": ("less", "By its counts, {new} does less than {base}.", "By its counts, the new run does less"),
    "worse": ("more", "By its counts, {new} does more than {base}.", "By its counts, the new run does more"),
    "same": ("the same", "All counts of {base} and {new} are the same.", "No count changed"),
}
_SENTENCES = 3
_ROWS = 40


def verdict_word(found: RegionComparison | Comparison) -> str:
    return _words(found)[0]


def result_of(found: Comparison) -> str:
    """The last word on two runs."""
    return _words(found)[1].format(new=found.new, base=found.base)


def headline(found: Comparison) -> str:
    return _words(found)[2]


def _words(found: RegionComparison | Comparison) -> tuple[str, str, str]:
    return (_COUNTED if found.by_counts else _WORDS).get(found.verdict) or _WORDS[found.verdict]


def render_comparison_md(found: Comparison) -> str:
    """The whole file."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Comparison) -> Iterator[str]:
    yield MARK
    yield f"### {headline(found)}"
    yield ""
    yield f"{code(found.base)} → {code(found.new)}"
    yield ""
    if found.verdict == "not_comparable":
        yield from (f"- **{plain(reason)}**" for reason in found.reasons)
    yield from (f"- {plain(sentence)}" for sentence in found.sentences[:_SENTENCES])
    over = [budget for budget in found.budgets if budget["state"] != "kept"]
    yield from (f"- **Budget {plain(budget['state'])}**: {plain(budget['text'])}" for budget in over)
    yield ""
    yield from _region_table([region for region in found.regions if region.decides])
    yield ""
    if len(found.sentences) > _SENTENCES or len(found.regions) > 1 or found.notes:
        yield from _folded(found)


def _region_table(regions: list[RegionComparison]) -> list[str]:
    head = ["region", "verdict", "before", "after", "change", "interval (99 %)"]
    rows = [
        [
            "&nbsp;&nbsp;" * 2 * min(region.depth, 20) * (not region.decides) + code(region.label),
            verdict_word(region),
            duration(region.before_ns),
            duration(region.after_ns),
            "–" if region.change is None else percent(region.change, signed=True),
            "–" if region.interval is None else " … ".join(percent(edge, signed=True) for edge in region.interval),
        ]
        for region in regions[:_ROWS]
    ]
    return table(head, rows, numbers=4)


def _folded(found: Comparison) -> Iterator[str]:
    yield "<details><summary>Causes, counts and all regions</summary>"
    yield ""
    yield from (f"- {plain(sentence)}" for sentence in found.sentences[_SENTENCES:])
    for region in [region for region in found.regions if region.decides][:8]:
        if region.causes:
            yield from ("", f"Causes of {code(region.label)}, which add up to {signed(region.delta_ns)}:", "")
            yield from table(
                ["cause", "what", "delta"],
                [[cause.kind, plain(cause.what), signed(cause.delta_ns)] for cause in region.causes],
                numbers=1,
            )
        if region.exact_changes:
            yield from ("", f"Counted per instance: {plain(', '.join(map(describe_exact, region.exact_changes)))}")
    yield ""
    yield from _region_table(found.regions)
    if len(found.regions) > _ROWS:
        yield from ("", f"{len(found.regions) - _ROWS} more are in `compare.json`.")
    yield from (f"\n{plain(note)}" for note in found.notes)
    yield from ("", "</details>")
