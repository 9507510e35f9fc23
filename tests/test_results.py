"""Results of benchmarks say which code they were measured with, and those that are older than it are named."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import bench_report
import provenance
from llm_perf_opt.readers.nsys_export import Export
from llm_perf_opt.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.readers.sqlite_columns import ROWID
from make_timeline import SOURCE, unpack


def states() -> dict[str, str]:
    """What the page says of each result."""
    rows = re.findall(r"^\| \[([^\]]+)\]\(.*\| ([^|]+) \|$", provenance.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: state.split()[0] for name, state in rows}


def test_every_result_says_what_it_measures() -> None:
    assert set(provenance.names()) == set(provenance.MEASURES) == set(states())
    source = provenance.ROOT / "src" / "llm_perf_opt"
    for name, paths in provenance.MEASURES.items():
        assert [path for path in paths if not (source / path).exists()] == [], name


@pytest.mark.process
def test_results_older_than_the_code_they_measure_are_listed() -> None:
    """Otherwise: measure them again, or have the page say so with python benchmarks/provenance.py"""
    if not provenance.has_history():
        pytest.skip("there is no history to compare with")
    found = {result.name: "older" if result.older else "current" for result in provenance.results()}
    listed = states()
    assert {name for name in found if found[name] == "older" and listed[name] != "older"} == set()
    known = {commit for result in provenance.results() for commit in result.commits if provenance.is_known(commit)}
    assert {commit for result in provenance.results() for commit in result.commits} == known


def test_every_result_names_the_commits_it_was_measured_with() -> None:
    """All of it: measure it again, or take it away."""
    assert [name for name in provenance.names() if not provenance.noted(name)[1]] == []


def test_parts_without_a_commit_have_the_one_that_the_file_tells() -> None:
    note = "Parts a, b_c and d were measured with commit 1234567; e on the same day with 89abcde (before f), g with abcdef0. Runs took 3 s (commits 1111111)."
    named = {"a": "1234567", "b_c": "1234567", "d": "1234567", "e": "89abcde", "g": "abcdef0"}
    assert provenance.commits_told(note) == named
    assert provenance.commits_told("The identifier is taken out by hand.") == {}


def test_a_benchmark_knows_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_PERF_COMMIT", "abc1234")  # a machine with a copy of the tree and no history
    assert provenance.commit() == "abc1234"


def test_every_benchmark_that_writes_a_result_notes_its_commit() -> None:
    for path in (provenance.ROOT / "benchmarks").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "results" in text and "json.dumps" in text and path.name != "provenance.py":
            assert re.search(r"^from provenance import .*\bcommit\b", text, re.MULTILINE), path.name


def test_commits_of_results_are_names_of_commits() -> None:
    for name in provenance.names():
        file = provenance.RESULTS / f"{name}.json"
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        assert re.fullmatch(r"[0-9a-f]{7,40}|", content.get("commit", "")), name


def test_reports_are_timed_against_a_fetch_of_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No column less, and none more."""
    unpack(SOURCE, recording := tmp_path / "recording.sqlite")
    read = {"NVTX_EVENTS": {"text"}}  # the one text of an event; fetched row by row
    columns = Export.columns

    def noted(self: Export, table: str, wanted: Any, progress: Any = None) -> Any:
        names = {column.name for column in wanted.values() if self.has(table, column.name)} - {ROWID}
        read.setdefault(table, set()).update(names)
        return columns(self, table, wanted, progress)

    monkeypatch.setattr(Export, "columns", noted)
    read_nsys_sqlite(recording, recording.name)
    assert {table: set(names) for table, names in bench_report.FETCHED.items()} == read
