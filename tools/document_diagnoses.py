"""Writes the tables of diagnoses into docs/troubleshooting.md, from the source; a test says when they are out of date.

    python tools/document_diagnoses.py

What nsys and ncu say is in one table (`nsight/messages.toml`). Every other diagnosis is written
where it is found: its code and its words are read from the source as it stands, and what a run fills in is `…`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_perf_opt.nsight.messages import RULES, STATES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCE = ROOT / "src" / "llm_perf_opt"
BEGIN, END = "<!-- diagnoses: made by tools/document_diagnoses.py -->", "<!-- end of diagnoses -->"
HOLE = "…"

# Sections of the page, each with the places whose diagnoses it holds; the first that fits counts.
SECTIONS = {
    "While planning the counters": ("planning", "metrics"),
    "In static analysis": ("static_analysis", "workloads", "stage1"),
    "While profiling": ("capture", "process", "nsight", "rundir", "inject", "doctor", "runners"),
    "In a report": ("",),
}
# Diagnoses whose words come from elsewhere: what they mean, and what to do.
EXPLAINED = {
    "RUN_FAILED": (
        "Something went wrong between two steps; the report is of what was captured before.",
        "The message names it.",
    ),
    "CALIBRATION_UNREADABLE": (
        "The file of measured peaks is damaged: the report goes without them.",
        "Make it again: `llm-perf calibrate`",
    ),
    "RECORDING_UNREADABLE": (
        "One recording of the run is damaged; the report is of the others.",
        "The message says what is wrong with it.",
    ),
    "REPORT_UNREADABLE": (
        "ncu ended as if all were well, and yet its report is not whole.",
        "The message says what is wrong with it; `llm-perf profile --resume RUN` takes it again.",
    ),
    "NO_REPORT": (
        "What was captured holds nothing to report on; or the profiler ended without writing a report.",
        "The message names the reason.",
    ),
    "NOT_ANNOTATED": (
        "`--annotate` could not reach the program: it uses no PyTorch, or starts Python without `PYTHONPATH`.",
        "See which commands can be annotated in [Marking regions](annotate.md); or mark ranges in the program.",
    ),
    "NO_MATCHING_KERNELS": (
        "The kernel patterns, or the kernel asked for, match none that was launched.",
        "A pattern is a glob over the whole name: `*gemm*`, or `regex:gemm`.",
    ),
}


class Found:
    """One code: its severities, meanings and fixes, each once, in the order they were met."""

    def __init__(self) -> None:
        self.severities: dict[str, None] = {}
        self.meanings: dict[str, None] = {}
        self.fixes: dict[str, None] = {}

    def add(self, severity: str, meaning: str, fix: str) -> None:
        for text, known in ((severity, self.severities), (meaning, self.meanings), (fix, self.fixes)):
            if text.strip(f" {HOLE}."):
                known[text] = None


def words(node: ast.expr | None, named: Mapping[str, ast.expr]) -> str:
    """A text of the source; what a run fills in is a hole. `named`: texts that have a name there."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part, named) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left, named) + words(node.right, named)
    if isinstance(node, ast.Name) and node.id in named:
        return words(named[node.id], {})
    return HOLE


def in_source(path: Path) -> Iterable[tuple[str, str, str, str]]:
    """Code, severity, meaning and fix of every diagnosis a file makes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Diagnosis"):
            continue
        parts = dict(zip(("code", "severity", "message", "fix"), call.args, strict=False))
        parts |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        around = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or f.lineno)]
        named = _named(around[-1], call.lineno) if around else {}
        code, *told = (words(parts.get(name), named) for name in ("code", "severity", "message", "fix"))
        if re.fullmatch(r"[A-Z][A-Z_]+", code):
            yield code, told[0], told[1], told[2]


def _named(function: ast.FunctionDef, until: int) -> dict[str, ast.expr]:
    """What names stand for in a function, up to a line: the last thing each was given."""
    found: dict[str, ast.expr] = {}
    for node in sorted((n for n in ast.walk(function) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        if node.lineno <= until and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def collect() -> dict[str, dict[str, Found]]:
    """Section -> code -> what is known of it."""
    sections: dict[str, dict[str, Found]] = {title: {} for title in SECTIONS}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).with_suffix("").as_posix()
        title = next(t for t, starts in SECTIONS.items() if place.startswith(starts))
        for code, *told in in_source(path):
            sections[title].setdefault(code, Found()).add(*told)
    for rule in (*RULES, *STATES.values()):
        cause, fix = (re.sub(r"\{\w+\}", HOLE, text) for text in (rule.cause, rule.fix))
        sections["While profiling"].setdefault(rule.code, Found()).add(rule.severity, cause, fix)
    for codes in sections.values():
        for code, found in codes.items():
            if code in EXPLAINED:
                meaning, fix = EXPLAINED[code]
                found.meanings, found.fixes = {meaning: None}, {fix: None}
    silent = [code for codes in sections.values() for code, found in codes.items() if not found.meanings]
    if silent:
        raise SystemExit(f"explain in EXPLAINED, because their words are not in the source: {', '.join(silent)}")
    return sections


def cell(texts: Iterable[str]) -> str:
    """Texts for one cell of a table; what stands between backticks is code already."""
    joined = " / ".join(re.sub(rf"(?:{HOLE}\s*){{2,}}", f"{HOLE} ", text).strip() for text in texts)
    parts = re.sub(r"\s+", " ", joined).split("`")
    parts[::2] = [re.sub(r"[*<_]", lambda found: f"\\{found[0]}", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|") or "–"


def render() -> str:
    """The tables, a section each."""
    parts = []
    for title, codes in reversed(collect().items()):
        rows = [
            f"| `{code}` | {', '.join(found.severities) or 'error'} | {cell(found.meanings)} | {cell(found.fixes)} |"
            for code, found in sorted(codes.items())
        ]
        head = ["| code | | what it says | what to do |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *rows]))
    return "\n\n".join(parts)


def page(old: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
