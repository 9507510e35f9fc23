"""Which commit a result was measured with, and which results are older than the code they measure.

    python benchmarks/provenance.py           # writes the list into benchmarks/results/README.md

Every benchmark notes `commit()` in its result. A result is older where one of the paths it measures (`MEASURES`) has
changed since. Every result names its commits, or a test fails: a figure of which nobody can say with what it was
measured is measured again, or goes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = RESULTS / "README.md"

_READING = ("readers", "regions", "analysis", "report")
_CAPTURING = ("capture", "planning", "nsight", "inject", "process", "request.py")
# What each result depends on, below src/llm_perf_opt; how it is measured is the program beside it.
MEASURES: dict[str, tuple[str, ...]] = {
    "annotate-cost-cpu": ("inject",),
    "answers": (*_READING, "metrics"),
    "bridge-h200": (*_CAPTURING, *_READING, "metrics", "workloads"),
    "compare-h200": ("inject", "readers", "regions", "analysis", "comparing"),
    "compare-recordings": ("readers", "regions", "analysis", "comparing"),
    "contract-commands-h200": (*_CAPTURING, *_READING, "conf", "options", "runners", "stage1", "workloads"),
    "faults": ("capture", "process", "rundir", "inject"),
    "fuzz": ("readers", "regions"),
    "hostile-inputs": ("readers", "regions", "analysis", "report", "rundir/scrub", "cli"),
    "html-page": ("report",),
    "join-accuracy": ("readers", "regions", "analysis"),
    "lines-h200": (*_CAPTURING, *_READING),
    "load": _READING,
    "ranks-h200": ("inject", "capture", *_READING),
    "report-speed": _READING,
    "rules-h200": (*_READING, "metrics"),
    "safe-hands": ("files.py", "rundir", "report", "api"),
    "safe-hands-secrets": ("rundir", "capture", "report", "untrusted.py"),
    "try-levers-h200": ("trying", "inject"),
    "serving-h200": ("inject", "regions", "analysis"),
    "unseen-answers": (*_READING, "metrics"),
    "true-answers-h200": ("inject", "capture", "readers", "regions", "analysis", "report"),
    "unseen-programs-h200": (*_READING, "metrics"),
    "true-time-h200": ("inject", "readers", "regions", "analysis"),
}


def commit() -> str:
    """The commit of this tree; on a machine that has only a copy, what LLM_PERF_COMMIT says; "" where nobody knows."""
    return os.environ.get("LLM_PERF_COMMIT") or _git("rev-parse", "--short", "HEAD")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def has_history() -> bool:
    """Can it be told what came after what? Not in an unpacked archive or a shallow clone."""
    return _git("rev-parse", "--is-shallow-repository") == "false"


@define(frozen=True)
class Result:
    """One result file and the commits behind it."""

    name: str
    commits: tuple[str, ...]  # it was measured with: parts of it may have been at different times
    whole: bool  # of all parts of it?
    older: bool

    @property
    def row(self) -> str:
        shown = ", ".join([*(f"`{name}`" for name in self.commits), *([] if self.whole else ["it does not say"])])
        state = "older than the code it measures" if self.older else "current"
        paths = ", ".join(f"`{path}`" for path in MEASURES[self.name])
        return f"| [{self.name}]({files(self.name)[-1].name}) | {shown} | {paths} | {state} |"


def names() -> list[str]:
    return sorted({path.stem for path in RESULTS.iterdir() if path.suffix in (".json", ".md") and path != PAGE})


def files(name: str) -> list[Path]:
    """Of one result: data first, then the page."""
    return [path for path in (RESULTS / f"{name}.json", RESULTS / f"{name}.md") if path.exists()]


def results() -> Iterator[Result]:
    """All results in order; needs the history."""
    for name in names():
        commits, whole = noted(name)
        older = not whole or any(_changed_since(name, commit) for commit in commits)
        yield Result(name, commits, whole, older)


def noted(name: str) -> tuple[tuple[str, ...], bool]:
    """Commits that a result names, and whether they are those of all of it."""
    file = RESULTS / f"{name}.json"
    content: Any = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rows = [part for part in content.get("results", []) if isinstance(part, dict) and "commit" in part]
    if content.get("commit") and not rows:
        return (content["commit"],), True
    parts = {str(number): row for number, row in enumerate(rows)} or content.get("parts") or {}
    # Parts from before each had a commit of its own: what the file says of them.
    told = commits_told(content.get("note", ""))
    found = [part.get("commit") or told.get(part_name, "") for part_name, part in parts.items()]
    return tuple(sorted(set(filter(None, found)))), bool(found) and all(found)


def commits_told(note: str) -> dict[str, str]:
    """From "a, b and c were measured with commit 1234567; d on the same day with 89abcde": the commit of each part."""
    told = {}
    for clause in re.split(r"[;.] |, (?=\w+ with )", note):
        if found := re.match(
            r"(?:Parts )?([\w, ]+?)(?: were measured| on the same day)? with (?:commit )?([0-9a-f]{7,40})\b", clause
        ):
            told |= dict.fromkeys(re.split(r", | and ", found[1]), found[2])
    return told


def is_known(commit: str) -> bool:
    """In the history of this tree?"""
    return bool(_git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"))


def _changed_since(name: str, commit: str) -> bool:
    paths = [f"src/llm_perf_opt/{path}" for path in MEASURES[name]]
    return not is_known(commit) or bool(_git("log", "-1", "--format=%h", f"{commit}..HEAD", "--", *paths))


def page() -> str:
    lines = [
        "# What was measured, and with which code",
        "",
        "Written by `python benchmarks/provenance.py`; a test says when it is out of date. A result is older where one of the",
        "paths below `src/llm_perf_opt` that it measures has changed since: its figures are of that time.",
        "",
        "| result | measured with | measures | state |",
        "|---|---|---|---|",
        *(result.row for result in results()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print("\n".join(result.name for result in results() if result.older))
