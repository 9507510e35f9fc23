"""A comparison as JUnit XML, which every CI system shows: a test case a region and a budget."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from llm_perf_opt.comparing.comparison import NOT_COMPARABLE, UNSURE, WORSE, Comparison
from llm_perf_opt.comparing.sentences import describe_region
from llm_perf_opt.regions.names import printable

MARK = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- llm-perf compare -->'


def render_junit(found: Comparison) -> str:
    """Failures are regions that got worse and budgets that were passed; what cannot be told is skipped."""
    cases = []
    counts = {"failures": 0, "skipped": 0}
    for region in found.regions:
        if region.decides or region.verdict == WORSE:
            failed = region.verdict == WORSE and region.decides
            skipped = region.verdict in (UNSURE, NOT_COMPARABLE)
            cases.append(_case("region", region.label, describe_region(region), failed, skipped, counts))
    for budget in found.budgets:
        name = f"{budget['what']} of {budget['region']}"
        over, unsure = budget["state"] == "over", budget["state"] == "unsure"
        cases.append(_case("budget", name, budget["text"], over, unsure, counts))
    numbers = f'tests="{len(cases)}" failures="{counts["failures"]}" skipped="{counts["skipped"]}" errors="0"'
    name = quoteattr(_clean(f"llm-perf compare {found.base} {found.new}"))
    return (
        f"{MARK}\n<testsuites>\n<testsuite name={name} {numbers}>\n" + "".join(cases) + "</testsuite>\n</testsuites>\n"
    )


def _case(kind: str, name: str, text: str, failed: bool, skipped: bool, counts: dict[str, int]) -> str:
    head = f"<testcase classname={quoteattr(f'llm-perf.{kind}')} name={quoteattr(_clean(name))}>"
    counts["failures"] += failed
    counts["skipped"] += skipped and not failed
    message = quoteattr(_clean(text))
    inside = f"<failure message={message}/>" if failed else f"<skipped message={message}/>" if skipped else ""
    return f"{head}{inside}<system-out>{escape(_clean(text))}</system-out></testcase>\n"


def _clean(text: str) -> str:
    """XML has no form for control characters, nor for halves of surrogate pairs."""
    return printable(text).replace("\ufffe", "").replace("\uffff", "")
