"""Is the answer of each recording what an expert would say? One table: right, unsure, wrong.

    python benchmarks/answers.py [--shared DIR] [--only TEXT]

`tests/answers.toml` has the recordings with the expert's answer and the reason. Those of the repository are always
there; those beside it (`--shared`, by default ../shared/data) are left out where they are missing. An answer is right
if stage, verdict and first fix are among those an expert would give, unsure if it claims no cause (the verdict is
`unknown`, or the first fix is to find what the host does), wrong otherwise. Results go to benchmarks/results/answers.{json,md}.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.fixes import Answer
from llm_perf_opt.version import __version__
from provenance import commit

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "answers.toml"
RECORDINGS = ROOT / "tests" / "recordings"
SHARED = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "results"
OUTCOMES = ("right", "unsure", "wrong")
NONE = "none"  # no fix: none that the recording could tell
NO_CAUSE = "host.unknown"  # no pattern fits it: it says that the cause is not known


def _listed(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@define(frozen=True)
class Case:
    """A recording, or several that belong together, and what an expert says about it."""

    name: str
    reason: str
    files: tuple[str, ...] = field(converter=_listed)  # of tests/recordings, or of the shared data where `shared`
    stage: tuple[str, ...] = field(converter=_listed)  # patterns, one of which the stage must match
    verdict: tuple[str, ...] = field(converter=_listed)
    first: tuple[str, ...] = field(converter=_listed)  # patterns of rules; `none`: there is no fix
    why: str = ""  # a word that the answer has to have: the late rank, say
    confidence: tuple[str, ...] = field(default="*", converter=_listed)
    shared: bool = False
    unsure: bool = False  # the recording may not tell: no answer is as good
    not_yet: str = ""  # what the answer lacks as it is; a test says when it no longer does

    def paths(self, shared: Path = SHARED) -> list[Path]:
        folder = shared if self.shared else RECORDINGS
        return [folder / name for name in self.files]


def cases() -> list[Case]:
    return [Case(**entry) for entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["case"]]


def rate(case: Case, answer: Answer) -> str:
    """`right`, `unsure` or `wrong`."""
    own = [fix.rule for fix in answer.fixes if fix.stage == answer.stage]
    no_cause = own[0] == NO_CAUSE if own else answer.verdict == "unknown"
    unsure = no_cause or (answer.verdict == "unknown" and _fits(own[0], case.first))
    said = (
        (answer.stage, case.stage),
        (answer.verdict, case.verdict),
        (answer.confidence, case.confidence),
        (own[0] if own else NONE, case.first),
    )
    fits = all(_fits(text, patterns) for text, patterns in said) and case.why in str(answer)
    if fits and NO_CAUSE not in own[:1]:
        return "right"
    return "unsure" if unsure else "wrong"


def _fits(text: str, patterns: Sequence[str]) -> bool:
    refused = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]
    return any(fnmatchcase(text, p) for p in wanted) and not any(fnmatchcase(text, p) for p in refused)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the recordings beside the repository are")
    parser.add_argument("--only", default="", help="cases whose name has this text; nothing is written then")
    arguments = parser.parse_args()
    rows, missing = [], []
    for case in cases():
        if arguments.only not in case.name:
            continue
        paths = case.paths(arguments.shared)
        if not all(path.exists() for path in paths):
            missing.append(case.name)
            continue
        rows.append(_row(case, paths))
        print(f"{rows[-1]['outcome']:7} {case.name}", flush=True)
    told = Counter(row["outcome"] for row in rows)
    print(", ".join(f"{told[outcome]} {outcome}" for outcome in OUTCOMES), f"of {len(rows)};", len(missing), "missing")
    if not arguments.only:
        _write(rows, missing)
    return 0


def _row(case: Case, paths: Sequence[Path]) -> dict[str, Any]:
    began = time.monotonic()
    answer = make_report([str(path) for path in paths], ReportOptions(), quiet=True).answer
    said = asdict(answer)
    said["fixes"] = [fix.rule for fix in answer.fixes[:3]]
    expected = {"stage": case.stage, "verdict": case.verdict, "first": case.first, "reason": case.reason}
    seconds = round(time.monotonic() - began, 1)
    return {
        "name": case.name,
        "outcome": rate(case, answer),
        "not_yet": case.not_yet,
        "said": said,
        "expected": expected,
        "seconds": seconds,
    }


def _write(rows: Sequence[dict[str, Any]], missing: Sequence[str]) -> None:
    told = Counter(row["outcome"] for row in rows)
    head = {
        "llm_perf_opt": __version__,
        "commit": commit(),
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{outcome: told[outcome] for outcome in OUTCOMES},
        "missing": list(missing),
    }
    content = json.dumps({**head, "cases": rows}, indent=1, ensure_ascii=False)
    (RESULTS / "answers.json").write_text(content + "\n", encoding="utf-8")
    (RESULTS / "answers.md").write_text(_page(head, rows), encoding="utf-8")


def _page(head: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    counts = ", ".join(f"{head[outcome]} {outcome}" for outcome in OUTCOMES)
    lines = [
        "# Answers beside those of an expert",
        "",
        f"`make answers`, {head['measured']}, llm-perf {head['llm_perf_opt']}, commit `{head['commit']}`: "
        f"{counts} of {len(rows)} recordings ({len(head['missing'])} were not there).",
        "",
        "| recording | outcome | said: stage, verdict, first fix | an expert says | because |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -OUTCOMES.index(row["outcome"])):
        said, expected = row["said"], row["expected"]
        words = [said["stage"] or "–", said["verdict"], said["fixes"][0] if said["fixes"] else NONE]
        wanted = [" or ".join(expected[part]) for part in ("stage", "verdict", "first")]
        cells = [row["name"], row["outcome"], *(", ".join(f"`{w}`" for w in part) for part in (words, wanted))]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, expected["reason"])) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
