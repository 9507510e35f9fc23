"""Writes docs/rules.md from the fix rules (`analysis/rules`); a test says when it is out of date.

python tools/document_rules.py
"""

from __future__ import annotations

import re
from pathlib import Path

from llm_perf_opt.analysis.rules.all_rules import RULES
from llm_perf_opt.analysis.rules.rule import Rule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
_HEAD = """# Fix rules

Made by `tools/document_rules.py` from `analysis/rules`, one file a rule. The `rule` of a fix in the
[answer](reading-the-report.md#the-answer) is one of these ids. Rules are tried in order, causes before effects, and
time that one rule explains is not counted by another. A rule whose evidence is not conclusive does not fire.

Every gain has an interval (`gain_interval_ns`). Of kernels it goes from what they reach at least to what they reach at
best; each rule says how. Of idle time it is its spread: what the steady instance loses that is at the 10th percentile,
and the one at the 90th, widened to the mean, which is the gain itself; and, because some waiting stays and other goes
with it, from 0.9 times the one to 1.25 times the other, as mending gained in the programs of `benchmarks/rules/`. Where
there is one instance, nothing tells how much others differ: half of the idle time stands for the 10th percentile.

"""


def page() -> str:
    ordered = sorted(RULES, key=lambda rule: rule.id)
    rows = [f"| [`{rule.id}`](#{_anchor(rule)}) | {rule.title} |" for rule in ordered]
    return "\n".join([_HEAD, "| rule | what it is |", "|---|---|", *rows, "", "\n\n".join(map(_section, ordered)), ""])


def _anchor(rule: Rule) -> str:
    return re.sub(r"[^\w-]", "", rule.id)


def _section(rule: Rule) -> str:
    parts = [
        f"## {rule.id}",
        f"**{rule.title}.** {rule.costs}",
        f"Detected by: {_lower(rule.seen)}",
        f"What to do: {_filled(rule.words.action)}.",
        *_by_variant(rule),
        f"Predicted gain: {_lower(rule.gain)}",
    ]
    if rule.before:
        parts.append(f"```python\n# before\n{rule.before.strip()}\n\n# after\n{rule.after.strip()}\n```")
    if rule.unless:
        parts.append(f"Does not apply if: {_lower(rule.unless)}")
    return "\n\n".join(parts)


def _by_variant(rule: Rule) -> list[str]:
    """What else is said, by what the recording shows."""
    others = dict.fromkeys(_filled(words.action) for words in rule.variants.values())
    others.pop(_filled(rule.words.action), None)
    return [f"Or, by what is seen: {'; or: '.join(others)}."] if others else []


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _filled(text: str) -> str:
    """Numbers of a stage are filled in later."""
    return re.sub(r"\{\w+\}", "…", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
