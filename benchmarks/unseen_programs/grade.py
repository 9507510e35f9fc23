"""Grades what reports answer about the recorded programs of this folder, as the page on grading has it. No GPU needed.

    python benchmarks/unseen_programs/grade.py [TRACES]     results go to benchmarks/results/unseen-programs-h200.{json,md}
    python benchmarks/unseen_programs/grade.py --first-look  keeps them as first_look.toml too; only once

TRACES (default: h200/ beside this file) has `times.json` and a trace of each program. Ids, stages, gains and planted
amounts are graded by rule from truth.toml. What only a person can tell (does the verdict say the same, would it be of
use?) stands in read.toml, one entry for an answer: its stage, verdict and first fix. An answer that nobody has read
yet is named, and nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import asdict, define

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.regions.fixes import Answer, Fix
from llm_perf_opt.version import __version__
from provenance import commit

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
FIRST_LOOK = HERE / "first_look.toml"
ENDINGS = (".json.xz", ".json.gz", ".json")
RIGHT, UNSURE, WRONG = GRADES = ("right", "unsure", "wrong")
LEFT_OUT = "left out"
NONE, CANNOT_TELL = "none", "host.unknown"
A_STEP = re.compile(r"step|whole recording|ProfilerStep(#\*)?")
AN_ID = re.compile(r"[a-z0-9_.*]+")  # of `never`; all else there is a sentence


@define(frozen=True)
class Share:
    """What one fix promises, of the step."""

    rule: str
    share: float


@define(frozen=True)
class Said:
    """What the report answers."""

    stage: str
    verdict: str
    confidence: str
    where: str
    fixes: tuple[Share, ...]
    host_ms: float | None  # idle time that the first fix would win back, each time the stage runs

    @property
    def first(self) -> str:
        return self.fixes[0].rule if self.fixes else NONE

    @property
    def short(self) -> str:
        """How read.toml names an answer."""
        return f"{self.stage}, {self.verdict}, {self.first}"


def ask(trace: Path) -> Said:
    report = make_report([str(trace)], ReportOptions(), quiet=True)
    answer: Answer = report.answer
    regions = [region for scope in report.scopes for region in scope.regions if region.performance]
    walls = {region.key: region.performance.time.wall.value for region in regions}
    step = sum(walls[key] for key in report.stages)

    def share(fix: Fix) -> float:
        parts = [(fix.stage, fix.gain_share), *((also.stage, also.gain_share) for also in fix.also)]
        return sum(gain * walls[stage] for stage, gain in parts) / step

    host = answer.fixes[0].gain_ns / 1e6 if answer.fixes and answer.fixes[0].rule.startswith("host.") else None
    fixes = tuple(Share(fix.rule, round(share(fix), 4)) for fix in answer.fixes)
    said = (answer.stage, answer.verdict, answer.confidence, answer.where)
    return Said(*said, fixes, host)


def grade_first(truth: Mapping[str, Any], first: str, read: str) -> str:
    if first in truth["first_fix"]:
        return RIGHT
    if first in truth["unsure"] or (first in (NONE, CANNOT_TELL) and truth["kind"] != "tuned"):
        return UNSURE
    return WRONG if is_never(truth, first) else read


def is_never(truth: Mapping[str, Any], rule: str) -> bool:
    known = (*truth["first_fix"], *truth["unsure"])
    globs = [glob for glob in truth["never"] if AN_ID.fullmatch(glob)]
    return rule not in known and any(fnmatchcase(rule, glob) for glob in globs)


def grade_stage(truth: Mapping[str, Any], stage: str, where: str = "") -> str:
    """`where`: the sentence about the stage. Where it names all of a number together, it names the stage."""
    plain = stage.replace("\\/", "/")
    name = re.sub(r"^ProfilerStep(#\*)?/", "", plain)
    wanted = ["step" if A_STEP.fullmatch(one) else re.sub(r"(?<=[._])N\b", "*", one) for one in truth["stage"]]
    if ("step" in wanted and A_STEP.fullmatch(plain)) or name in wanted:
        return RIGHT
    for one in wanted:
        if "*" in one and re.fullmatch(re.escape(one).replace(r"\*", r"\d+"), name):  # one instance of several
            return RIGHT if one in re.split(r"[ ,;]+", where) else WRONG
    related = any(one.startswith(f"{name}/") or name.startswith(f"{one}/") for one in wanted if one != "step")
    return UNSURE if related else WRONG


def whole(first: str, stage: str, verdict: str, drops: bool) -> str:
    grade = WRONG if WRONG in (first, verdict) else RIGHT if first == RIGHT and stage != WRONG else UNSURE
    return GRADES[min(GRADES.index(grade) + drops, 2)]


def left_out(truth: Mapping[str, Any], times: Mapping[str, Any]) -> str:
    """Why the case does not count; "" where it does."""
    mended = times.get("mended", {})
    errors = [key for key in times if key.endswith(("_error", "_skipped"))]
    if errors or "error" in mended or "step_ms" not in times:
        return f"no measured gain: {mended.get('error') or ', '.join(errors)}"
    gain = measured_gain(times)
    if gain is not None and gain < truth.get("holds", -1):
        return f"the plant did not take: {gain:.0%}"
    return ""


def measured_gain(times: Mapping[str, Any]) -> float | None:
    mended = times.get("mended", {}).get("step_ms")
    return None if mended is None else (times["step_ms"] - mended) / times["step_ms"]


def grade_gain(truth: Mapping[str, Any], times: Mapping[str, Any], predicted: float, measured: float | None) -> str:
    """Of the first fix, where it is right."""
    mended = truth.get("mended")
    if mended is None or measured is None:
        return "–"
    if mended == "similar work":
        return "not counted: other work"
    if NONE in truth["first_fix"]:
        return "not counted: the mended program is without another thing"
    noise = abs(times.get("step_ms_again", times["step_ms"]) - times["step_ms"]) / times["step_ms"]
    if noise > abs(measured) / 3:
        return "not graded: noise"
    if mended == "upper bound":
        return WRONG if predicted > 1.2 * measured else RIGHT
    factor = max(predicted, measured) / max(min(predicted, measured), 1e-9)
    if factor <= 1.5 or abs(predicted - measured) <= 0.05:
        return RIGHT
    return UNSURE if factor <= 2.5 else WRONG


def planted(truth: Mapping[str, Any], times: Mapping[str, Any], said: Said, read: Mapping[str, Any]) -> str:
    """What the host does with nothing launched, beside what the answer says of it."""
    names = truth.get("planted", [])
    if not names or said.host_ms is None:
        return "–"
    real = sum(times["planted_ms"][name] for name in names)
    told = said.host_ms / read.get("gaps", 1)
    near = abs(told - real) <= max(0.2 * real, 2)
    return f"{told:.1f} ms, planted {real:.1f} ms: {RIGHT if near else WRONG}"


@define(frozen=True)
class Row:
    """One program: what was said of it, and the grade."""

    program: str
    kind: str
    said: str
    confidence: str
    gain: float | None  # of the first fix, share of the step
    measured: float | None
    grade: str
    stage: str
    verdict: str
    first: str
    gain_grade: str
    planted: str
    never: tuple[str, ...]  # further down in the list
    useful: bool
    why: str


def row(name: str, truth: Mapping[str, Any], times: Mapping[str, Any], said: Said, read: Mapping[str, Any]) -> Row:
    first = grade_first(truth, said.first, read.get("first", WRONG))
    stage, measured = grade_stage(truth, said.stage, said.where), measured_gain(times)
    verdict = WRONG if read.get("statements") else read["verdict"]
    below = [fix for fix in said.fixes[1:] if is_never(truth, fix.rule)]
    grade = whole(first, stage, verdict, any(fix.share > 0.1 for fix in below))
    out = left_out(truth, times)
    gain = said.fixes[0].share if said.fixes else None
    why = f"{out}. (Would be {grade}: {read['why']})" if out else read["why"]
    return Row(
        name,
        truth["kind"],
        said.short,
        said.confidence,
        gain,
        None if measured is None else round(measured, 4),
        LEFT_OUT if out else grade,
        stage,
        verdict,
        first,
        grade_gain(truth, times, gain, measured) if first == RIGHT and gain and not out else "–",
        planted(truth, times, said, read),
        tuple(f"{fix.rule} {fix.share:.0%}" for fix in below),
        bool(read.get("useful")) and grade == RIGHT and not out,
        why,
    )


def traces(folder: Path) -> dict[str, Path]:
    found = {}
    for ending in ENDINGS:
        found |= {path.name.removesuffix(ending): path for path in folder.glob(f"*{ending}") if path.stem != "times"}
    return found


def readings() -> dict[tuple[str, str], Mapping[str, Any]]:
    read = tomllib.loads((HERE / "read.toml").read_text(encoding="utf-8"))
    return {(name, entry["said"]): entry for name, entries in read.items() for entry in entries}


def rows(folder: Path) -> Iterator[Row | str]:
    """A row for each program; the answer where nobody has read it."""
    truths = tomllib.loads((HERE / "truth.toml").read_text(encoding="utf-8"))
    times = json.loads((folder / "times.json").read_text(encoding="utf-8"))["programs"]
    found, read = traces(folder), readings()
    for name, truth in truths.items():
        said = ask(found[name])
        reading = read.get((name, said.short))
        yield f"{name}: {said.short}" if reading is None else row(name, truth, times[name], said, reading)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="?", type=Path, default=HERE / "h200")
    parser.add_argument("--first-look", action="store_true", help="keep this as what was answered at the first look")
    arguments = parser.parse_args()
    if arguments.first_look and FIRST_LOOK.exists():
        raise SystemExit(f"{FIRST_LOOK.name} is there: there is one first look only.")
    graded, unread = [], []
    for one in rows(arguments.traces):
        if isinstance(one, str):
            unread.append(one)
            print("unread   ", one, flush=True)
        else:
            graded.append(one)
            print(f"{one.grade:9} {one.program}: {one.said}", flush=True)
    print(counted(graded))
    if unread:
        print("Nothing is written: read these answers, and note them in read.toml.")
        return 1
    head = {
        "llm_perf_opt": __version__,
        "commit": commit(),
        "measured": str(datetime.datetime.now(datetime.UTC).date()),
    }
    if arguments.first_look:
        FIRST_LOOK.write_text(as_toml(head, graded), encoding="utf-8")
    write(head, graded)
    return 0


def as_toml(head: Mapping[str, str], graded: Iterable[Row]) -> str:
    lines = ["# What was answered and how it was graded at the first look. Written by `grade.py --first-look`."]
    lines += [f"{key} = {json.dumps(value)}" for key, value in head.items()]
    for one in graded:
        fields = ((key, value) for key, value in asdict(one).items() if value is not None and key != "program")
        lines += ["", f"[{one.program}]", *(f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in fields)]
    return "\n".join([*lines, ""])


def first_look() -> dict[str, Any]:
    return tomllib.loads(FIRST_LOOK.read_text(encoding="utf-8")) if FIRST_LOOK.exists() else {}


def counted(graded: Sequence[Any]) -> str:
    """Of rows, or of the entries of first_look.toml."""
    entries = [one if isinstance(one, Mapping) else asdict(one) for one in graded]
    counts = Counter(one["grade"] for one in entries)
    useful = sum(one["useful"] for one in entries)
    return f"{counts[RIGHT]} right ({useful} of them useful), {counts[UNSURE]} unsure, {counts[WRONG]} wrong, {counts[LEFT_OUT]} left out"


def write(head: Mapping[str, str], graded: Sequence[Row]) -> None:
    first = first_look()
    looked = {name: entry for name, entry in first.items() if isinstance(entry, dict)}
    totals = {
        "all": (list(looked.values()), list(graded)),
        **{kind: ([e for e in looked.values() if e["kind"] == kind], [r for r in graded if r.kind == kind])
           for kind in ("planted", "mixed", "tuned")},
    }  # fmt: skip
    content = {
        **head,
        "first_look_commit": first.get("commit", ""),
        "totals": {kind: {"first look": counted(then), "now": counted(now)} for kind, (then, now) in totals.items()},
        "false_alarms": [one.program for one in graded if one.kind == "tuned" and one.grade == WRONG],
        "programs": [{**asdict(one), "first_look": looked.get(one.program, {}).get("grade", "")} for one in graded],
    }
    target = RESULTS / "unseen-programs-h200.json"
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text(page(content, looked), encoding="utf-8")


def page(content: Mapping[str, Any], looked: Mapping[str, Any]) -> str:
    wrongly_sure = [
        one["program"] for one in content["programs"] if one["grade"] == WRONG and one["confidence"] == "high"
    ]
    lines = [
        "# Answers about programs that nobody tuned for",
        "",
        f"`python benchmarks/unseen_programs/grade.py`, {content['measured']}, llm-perf {content['llm_perf_opt']}, commit "
        f"`{content['commit']}`; the first look was with `{content['first_look_commit']}`. 27 programs ran on an H200, "
        "with and without the profiler of PyTorch; what is true of each was written down before anybody saw a time or an "
        "answer (`truth.toml`), and so was how to grade. What was wrong at the first look was mended by its "
        "mechanism afterwards: for what is said now, these programs are no longer unseen. All answers are from PyTorch "
        "traces alone; none is from nsys.",
        "",
        "| programs | first look | now |",
        "|---|---|---|",
        *(f"| {kind} | {total['first look']} | {total['now']} |" for kind, total in content["totals"].items()),
        "",
        f"False alarms on tuned programs now: {', '.join(content['false_alarms']) or 'none'}; at the first look: "
        f"{', '.join(n for n, e in looked.items() if e['kind'] == 'tuned' and e['grade'] == WRONG) or 'none'}. "
        f"Wrong with high confidence now: {', '.join(wrongly_sure) or 'none'}; at the first look: "
        f"{', '.join(n for n, e in looked.items() if e['grade'] == WRONG and e['confidence'] == 'high') or 'none'}.",
        "",
        "Gains are shares of the step. Parts: first fix, stage, verdict.",
        "",
        "| program | kind | said: stage, verdict, first fix | predicted | measured | first look | now | parts | useful | because |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(one) for one in sorted(content["programs"], key=lambda one: -[LEFT_OUT, *GRADES].index(one["grade"]))),
        "",
        "## Gains and planted amounts",
        "",
        "| program | predicted | measured | graded | planted |",
        "|---|---|---|---|---|",
        *(
            f"| {one['program']} | {_percent(one['gain'])} | {_percent(one['measured'])} | {one['gain_grade']} | {one['planted']} |"
            for one in content["programs"]
            if {one["gain_grade"], one["planted"]} != {"–"}
        ),
        "",
        "## The first look",
        "",
        "| program | said: stage, verdict, first fix | confidence | predicted | grade | useful | because |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {name} | `{e['said']}` | {e['confidence']} | {_percent(e.get('gain'))} | {e['grade']} | {_yes(e['useful'])} | {e['why']} |"
            for name, e in looked.items()
        ),
    ]
    return "\n".join([*lines, ""])


def _line(one: Mapping[str, Any]) -> str:
    parts = ", ".join(one[part] for part in ("first", "stage", "verdict"))
    never = f" Further down: {', '.join(one['never'])}." if one["never"] else ""
    cells = [one["program"], one["kind"], f"`{one['said']}`", _percent(one["gain"]), _percent(one["measured"])]
    cells += [one["first_look"] or "–", one["grade"], parts, _yes(one["useful"]), one["why"] + never]
    return "| " + " | ".join(cells) + " |"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _yes(value: bool) -> str:
    return "yes" if value else "–"


if __name__ == "__main__":
    raise SystemExit(main())
