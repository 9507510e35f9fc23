"""What reports answer about recordings that nobody tuned for. One table: right, unsure, wrong, none.

    python benchmarks/unseen_answers.py [--shared DIR] [--packages DIR] [--round 1..17] [--only TEXT]

`unseen/printed_kernels.toml` has kernels as ncu printed them for other people; `unseen/parts.toml` parts of public
recordings (`recording_parts.py`); `unseen/packages.toml` whole recordings that lie in source distributions of packages,
below `--packages` once they are unpacked there; `unseen/simulated.toml` programs on paper (`simulated_programs.py`),
`unseen/simulated_two.toml` more of them, by someone else (`simulated_programs_two.py`), `unseen/recorded.toml` programs
whose host side is PyTorch's own (`recorded_programs.py`; they need PyTorch), `unseen/paper.toml`,
`unseen/paper_two.toml` and `unseen/paper_three.toml` programs that are not PyTorch's (`paper_programs.py` and the like), with
kernels in `unseen/paper_kernels.toml` and `unseen/paper_kernels_two.toml`; `unseen/published.toml` what people publish of
programs of PyTorch, and `unseen/published_kernels.toml` of kernels that they learn with. The truth of each was written down from the numbers, or by scripts of their own over
the file, before the product was asked; what a round got wrong was mended by its mechanism, and only then the next round
was asked. `first_look` is what came out when a case was asked for the first time. Recordings that are
not there are left out. Results go to benchmarks/results/unseen-answers.{json,md}.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import json
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define

import paper_programs
import paper_programs_three
import paper_programs_two
import published_programs
import simulated_programs
import simulated_programs_two
from answers import NONE, Case, rate
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.fixes import Answer
from llm_perf_opt.version import __version__
from provenance import commit
from recording_parts import cut

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SHARED = ROOT.parent / "shared" / "data"
RESULTS = HERE / "results"
PACKAGES = SHARED / "packages"
ROUNDS = tuple(range(1, 18))
PROGRAMS = (
    "simulated",
    "simulated_two",
    "recorded",
    "paper",
    "paper_two",
    "paper_three",
    "published",
)  # files that describe programs
PAPER = (paper_programs, paper_programs_two, paper_programs_three, published_programs)
KINDS = {  # by the key that only entries of that kind have
    "kernel": "kernels that ncu printed",
    "part": "parts of recordings",
    "package": "whole recordings from packages",
    "program": "simulated programs",
    "recorded": "programs of PyTorch, their GPU simulated",
}
OUTCOMES = ("right", "unsure", "wrong", "none")
LIMITS = {"wrong": 0.02, "useful": 0.8}  # at most, at least
SOL = (
    "Memory Throughput",
    "DRAM Throughput",
    "L1/TEX Cache Throughput",
    "L2 Cache Throughput",
    "Compute (SM) Throughput",
)
CYCLES = ("Elapsed Cycles", "SM Active Cycles")
COLUMNS = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
    *("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup"),
)


@define(frozen=True)
class Unseen:
    """A recording, what an expert says about it, and what came out at the first look."""

    case: Case
    round: int
    first_look: str
    source: Mapping[str, Any]  # the entry it was made from


def unseen() -> Iterator[Unseen]:
    for entry in (
        *_entries("printed_kernels"),
        *_entries("paper_kernels"),
        *_entries("paper_kernels_two"),
        *_entries("published_kernels"),
    ):
        yield _unseen({"files": "", "stage": "*", **entry})
    for entry in _entries("parts"):
        yield _unseen({"shared": True, **entry})
    for entry in (*_entries("packages"), *(entry for name in PROGRAMS for entry in _entries(name))):
        yield _unseen({"files": "", **entry})


def _entries(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((HERE / "unseen" / f"{name}.toml").read_text(encoding="utf-8"))["case"]
    return found


def _unseen(entry: Mapping[str, Any]) -> Unseen:
    words = ("name", "reason", "files", "stage", "verdict", "first", "why", "confidence", "shared", "unsure")
    case = Case(**{word: entry[word] for word in words if word in entry})
    return Unseen(case, entry["round"], entry.get("first_look", ""), entry)


def recordings(one: Unseen, shared: Path, packages: Path, folder: Path) -> list[Path] | None:
    """The files to report on; None where they are not here."""
    if "kernel" in one.source:
        return [printed(one.source, folder / "printed.csv")]
    if "program" in one.source:
        program = one.source["program"]
        for programs in PAPER:
            if program in programs.PROGRAMS:
                return programs.simulate(program, folder)
        simulated = simulated_programs if program in simulated_programs.PROGRAMS else simulated_programs_two
        return simulated.simulate(program, one.source["form"], folder)
    if "recorded" in one.source:
        from recorded_programs import simulate  # here: it needs PyTorch

        return simulate(one.source["recorded"], folder)
    if "package" in one.source:
        path = packages / one.source["path"]
        found = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == one.source["sha256"]
        return [path] if found else None
    paths = one.case.paths(shared)
    if not all(path.exists() for path in paths):
        return None
    return [cut(path, one.source["part"], folder) for path in paths] if "part" in one.source else paths


def printed(entry: Mapping[str, Any], path: Path) -> Path:
    """What ncu printed of a kernel, or of several (`also`), as its page `details` has it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="", quoting=csv.QUOTE_ALL)
        table.writeheader()
        for number, kernel in enumerate((entry, *entry.get("also", ()))):
            table.writerows(_lines(kernel, number, entry.get("cc", "")))
    return path


def _lines(entry: Mapping[str, Any], number: int, capability: str) -> Iterator[dict[str, str]]:
    shape = {"Block Size": entry.get("block", ""), "Grid Size": entry.get("grid", "")}
    sizes = {name: f"({', '.join(map(str, value))})" if value else "" for name, value in shape.items()}
    same = {"ID": str(number), "Process ID": "1", "Kernel Name": entry["kernel"], "Context": "1", "Stream": "7"}
    same |= {"Device": "0", "CC": capability, **sizes}
    section = "Command line profiler metrics" if "metrics" in entry else "GPU Speed Of Light Throughput"
    rows = [(section, name, unit, value) for name, unit, value in entry.get("metrics", ())]
    if "duration" in entry:
        value, unit = entry["duration"].split()
        rows.append((section, "Duration", unit, value))
    rows += [(section, name, "%", str(one)) for name, one in zip(SOL, entry.get("sol", ()), strict=False) if one >= 0]
    rows += [(section, name, "cycle", str(one)) for name, one in zip(CYCLES, entry.get("cycles", ()), strict=False)]
    for own, name, unit, value in (*rows, *entry.get("more", ())):
        yield {**same, "Section Name": own, "Metric Name": name, "Metric Unit": unit, "Metric Value": value}
    rules = [("SpeedOfLight", "SOLBottleneck", "OPT", entry["rule"])] if "rule" in entry else []
    for own, name, kind, text, *speedup in (*rules, *entry.get("rules", ())):
        rule = {"Rule Name": name, "Rule Type": kind, "Rule Description": text}
        yield {**same, "Section Name": own, **rule, "Estimated Speedup": speedup[0] if speedup else ""}


def ask(one: Unseen, paths: Sequence[Path]) -> dict[str, Any]:
    """What the report answers, and how that is rated."""
    try:
        answer = make_report([str(path) for path in paths], ReportOptions(), quiet=True).answer
    except UserError as error:
        answer = Answer(why=str(error))
    own = [fix.rule for fix in answer.fixes if fix.stage == answer.stage]
    said = {"stage": answer.stage, "verdict": answer.verdict, "first": own[0] if own else NONE, "why": answer.why}
    case = one.case
    outcome = rate(case, answer) if answer.stage else "none" if not one.source.get("nothing") else "right"
    if any(word in str(answer) for word in one.source.get("never", ())):
        outcome = "wrong"
    return {
        "name": case.name,
        "round": one.round,
        "kind": next(kind for key, kind in KINDS.items() if key in one.source),
        "outcome": outcome,
        "first_look": one.first_look,
        "said": said,
        "expected": {"stage": case.stage, "verdict": case.verdict, "first": case.first, "reason": case.reason},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the public recordings are")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="where source distributions were unpacked")
    parser.add_argument("--round", type=int, choices=ROUNDS, help="one round alone; nothing is written then")
    parser.add_argument("--only", default="", help="cases whose name has this text; nothing is written then")
    arguments = parser.parse_args()
    rows, missing = [], []
    for one in unseen():
        if arguments.only not in one.case.name or arguments.round not in (None, one.round):
            continue
        with tempfile.TemporaryDirectory() as folder:
            paths = recordings(one, arguments.shared, arguments.packages, Path(folder))
            if paths is None:
                missing.append(one.case.name)
                continue
            rows.append(ask(one, paths))
        row = rows[-1]
        print(
            f"{row['outcome']:7}{row['round']} {row['name']}: {row['said']['verdict']}, {row['said']['first']}",
            flush=True,
        )
    print(_counted(rows), "of", len(rows), "·", len(missing), "missing")
    if not arguments.only and arguments.round is None:
        _write(rows, missing)
    return 0


def _counted(rows: Sequence[Mapping[str, Any]], what: str = "outcome") -> str:
    counts = Counter(row[what] for row in rows)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)


def _write(rows: Sequence[dict[str, Any]], missing: Sequence[str]) -> None:
    counts = Counter(row["outcome"] for row in rows)
    head = {
        "llm_perf_opt": __version__,
        "commit": commit(),
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "limits": LIMITS,
        "missing": list(missing),
    }
    content = json.dumps({**head, "cases": rows}, indent=1, ensure_ascii=False)
    (RESULTS / "unseen-answers.json").write_text(content + "\n", encoding="utf-8")
    (RESULTS / "unseen-answers.md").write_text(_page(head, rows), encoding="utf-8")


def _page(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "# Answers about recordings that nobody tuned for",
        "",
        f"`python benchmarks/unseen_answers.py`, {head['measured']}, llm-perf {head['llm_perf_opt']}, commit "
        f"`{head['commit']}`: {_counted(rows)} of {len(rows)} ({len(head['missing'])} were not there). "
        "To reach: at most 2 % wrong, at least 80 % right.",
        "",
        "| round | recordings | cases | at the first look | now |",
        "|---|---|---|---|---|",
    ]
    for number in ROUNDS:
        for kind in KINDS.values():
            own = [row for row in rows if (row["round"], row["kind"]) == (number, kind)]
            if own:
                lines.append(f"| {number} | {kind} | {len(own)} | {_counted(own, 'first_look')} | {_counted(own)} |")
    lines += [
        "",
        "What a round got wrong at the first look was mended by its mechanism before the next was asked; the recordings of the "
        "third were found after that. Parts are of recordings whose whole the answer suite has; they were asked once the "
        "kernels of the first two rounds had been mended. Whole recordings lie in source distributions of packages, found for the "
        "fourth round; simulated programs were written for it, and those of the fifth and sixth each once the faults of the one before had been mended. "
        "The programs of the seventh and eighth are by someone who had not built the product, and had not seen its rules; so are "
        "those of the ninth to the twelfth, whose host side PyTorch itself recorded, and of the thirteenth and fourteenth (not of the "
        "fifteenth), of programs that are not PyTorch's. The sixteenth and seventeenth are of the kinds that people publish most, by "
        "someone who had not read the rules before the sixteenth; of the seventeenth's kernels nine were asked once the others had been mended. From the ninth on, answers were read sentence by "
        "sentence: a misleading one anywhere, such as advice for PyTorch where there is none, counted as wrong.",
        "",
        "| recording | round | first look | now | said: stage, verdict, first fix | an expert says | because |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -OUTCOMES.index(row["outcome"])):
        said, expected = row["said"], row["expected"]
        words = ", ".join(f"`{said[part] or '–'}`" for part in ("stage", "verdict", "first"))
        wanted = ", ".join(f"`{' or '.join(expected[part])}`" for part in ("stage", "verdict", "first"))
        cells = [row["name"], str(row["round"]), row["first_look"] or "–", row["outcome"], words, wanted]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, expected["reason"])) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
