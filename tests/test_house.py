"""The shape of the code: small files, one vocabulary."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "llm_perf_opt"
LONGEST = 500
SHARED_NAMES = ("__init__.py", "argv.py", "columns.py", "files.py")
# Of Python. 41,061 without what came after: reading apart and safe outputs, secrets, programs without ranges, measuring;
# 45,450 without undisturbed times with energy and memory, pooled names, explained idle time, ranks, and the answer.
# 51,650 without lines of code, fix rules one file each, comparisons with budgets and history, trials, and traces read in chunks.
# 63,250 without the steps of serving engines, levers that pad, quantise and capture graphs, and what trials say in reports.
# 66,050 without jobs of many ranks and sweeps, rules for servers, agents, notebooks, and the JSON of every verb declared.
# 70,800 without counters of one rank beside the others, and what printed counters tell (L1 by cycles, DRAM before L2).
# 71,150 without the first lines of the page: program, speed, failed runs.
# 71,320 without what collectives send and how fast, and the imbalance of experts and stages.
# 71,640 without rows of SQLite that are decoded together, and reports of a million kernels in a fraction of the time.
# 72,150 without presets of launchers, and the story of a rank.
# 72,450 without failed runs that end as others do and lead on, and collectives as a part of a stage's time.
# 72,650 without sums of long columns block by block, so that a report of a million kernels takes about half the time.
# 72,900 without events of traces that are read side by side from their text, in two processes, and what is warm-up of a recording without ranges.
# 73,750 without gains of kernels that ran at a lower clock in the recording, trials of calls that run once and are compiled,
# gaps with their cause in Perfetto, waits between tokens, and comparisons that know who waited for a CPU and
# which profiler recorded, plots over the keys of a sweep, formats that say how their
# files begin, one fix for a cause that several stages have, a page that says what to type, bytes of each rank without
# counters, stages of a pipeline that wait for a busier one, lines of fixes by the very launches, waits and copies that
# they take, intervals of all gains, gaps that several short things fill together, waits between alternating steps that
# have one owner, lines of several ranks, a track of the host of recordings without lines, an example for every rule, what
# stages that differ in a number take together, the cost of PyTorch's profiler in what a graph would gain, a collective
# that never ends under ncu, a launcher for Ray, lines that compiled kernels were made from, steps that servers mark
# themselves, and what is kept and said of a server that does not end or answer, that speaks a protocol of its own,
# forks its workers late, or feeds prompts in pieces; calls of the operating system, GPUs that processes share, unified
# memory, advice for programs that are not PyTorch's; collectives matched by the times between them, of other steps and of
# groups; start/end ranges and what timing ranges costs; caches that tell prefill from steps; captures that are undone.
# Raised only with a capability, in the commit that brings it.
MOST_LINES = 79_600

# Words of the last column of the table in CONTRIBUTING.md, as far as they have no other meaning in this field.
NOT_OURS = re.compile(
    r"\b(waymarks?|ungated|holes|strangers?|speakers?|seals?|sealed|judges?|judged|asides?|gates?)\b", re.IGNORECASE
)
PHRASES = re.compile(r"\bfor[ _]ever\b|\bin[ _]vain\b|trust[-_]run|start[-_]ahead|stop[-_]when[-_]done", re.IGNORECASE)
# A gate is also a part of an MLP, and of a pipeline that lets a change pass or not.
ALLOWED = dict.fromkeys(("gate", "gates"), ("static_analysis", "workloads", "test_static_formulas", "test_patterns"))


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def not_ours(name: str) -> list[str]:
    # Names are made of words: capture_gate, CaptureGate.
    return NOT_OURS.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name))


def words_of(path: Path) -> list[str]:
    text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = [word for name in set(re.findall(r"\w+", text)) for word in not_ours(name)]
    found += [phrase[0] for phrase in PHRASES.finditer(text)]
    return [word for word in found if not any(part in place for part in ALLOWED.get(word.lower(), ()))]


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in python_files() if (n := len(p.read_text().splitlines())) > LONGEST}
    assert not long


def test_the_code_stays_within_its_size() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SOURCE.parent.rglob("*.py")) <= MOST_LINES


def test_a_module_is_found_by_its_name() -> None:
    """No two modules have one name, but verbs, readers (called like what they read), the code inside the user's program,
    and the argv of the two profilers."""
    places: dict[str, list[str]] = {}
    for path in python_files():
        place = path.relative_to(SOURCE)
        if place.parts[0] not in ("cli", "readers") and "payload" not in place.parts:
            places.setdefault(place.name, []).append(place.as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1 and name not in SHARED_NAMES}


@pytest.mark.parametrize("folder", ["src", "docs", "tests", "benchmarks", "tools"])
def test_one_vocabulary(folder: str) -> None:
    files = [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".toml", ".yaml", ".js", ".html")]
    files = [p for p in files if p != Path(__file__) and "recordings" not in p.parts and "results" not in p.parts]
    found = {str(path.relative_to(ROOT)): sorted(set(words)) for path in files if (words := words_of(path))}
    assert not found
