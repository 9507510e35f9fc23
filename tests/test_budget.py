"""Tables and traces stay in proportion to a recording, however long its names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.cli.main import main
from llm_perf_opt.regions import budget
from llm_perf_opt.regions.budget import affordable, in_rows
from llm_perf_opt.report.perfetto import _MOST_LANES, nested_lanes
from synthetic import make_export


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1), st.integers(0, 2000))
def test_the_largest_limit_that_can_be_afforded(pairs: list[tuple[int, int]], most: int) -> None:
    sizes, weights = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    limit = affordable(sizes, weights, most)

    def cost(limit: int) -> int:
        return int((np.minimum(sizes, limit) * weights).sum())

    assert limit == 1 or cost(limit) <= most
    assert limit >= sizes.max() or cost(limit + 1) > most


def test_usual_names_stay_whole_and_long_ones_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_CHARACTERS", 1000)
    texts = ["short", "x" * 400 + "a", "x" * 400 + "b"]
    few, many = np.array([0, 1, 2, -1]), np.repeat([0, 1, 2], 1000)
    assert in_rows(texts, few) == texts
    assert in_rows(["y" * 499], np.zeros(1000, dtype=np.int64)) == ["y" * 499]
    longer = [text * 5 for text in texts]
    cut = in_rows(longer, many)
    assert cut[0] == longer[0]
    assert len(set(cut)) == 3
    assert all(
        text.startswith("x" * 100) and text.endswith(f"… #{number}") for number, text in enumerate(cut) if number
    )
    assert sum(len(cut[number]) for number in many) < 1000 + 500 * len(many) + 10 * len(many)


def test_a_long_name_is_not_written_for_every_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name of sixteen thousand characters, and six thousand launches of it, all in a range with such a name."""
    kernels = [("k" * 16_000, 10 * i, 10 * i + 1, 10 * i + 5) for i in range(6000)]
    source = make_export(tmp_path / "run.sqlite", [("r" * 16_000, 0, 10**6)], kernels)
    size = source.stat().st_size
    words = ["--csv", str(tmp_path / "tables"), "--perfetto", str(tmp_path / "trace.json")]
    assert main(["export", str(source), *words]) == 0
    written = [tmp_path / "trace.json", *(tmp_path / "tables").iterdir()]
    assert sum(path.stat().st_size for path in written) < 200 * size
    assert "k" * 16_000 in (tmp_path / "tables" / "kernels.csv").read_text()


def test_what_overlaps_without_end_shares_the_last_track() -> None:
    count = 3 * _MOST_LANES
    lanes = nested_lanes(np.arange(count), np.arange(count) + count)
    assert lanes[:_MOST_LANES] == list(range(_MOST_LANES))
    assert set(lanes[_MOST_LANES:]) == {_MOST_LANES - 1}
