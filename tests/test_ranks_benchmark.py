"""The benchmark of ranks on one GPU, in small: on a CPU, with stand-ins for the profilers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fake_tools import tools as tools

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import ranks

pytestmark = [pytest.mark.process, pytest.mark.torch, pytest.mark.slow]


def test_ranks_are_measured_and_held_against_their_own_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--tiny", "--only", "srun-2", "--out", str(tmp_path / "result")])
    code = ranks.run_parts("", ranks.NAME, ranks.PARTS, ranks.measure, ranks.page)
    assert code == 0, capsys.readouterr().out
    part = json.loads((tmp_path / "result.json").read_text())["parts"]["srun-2"]
    checked = {check["what"] for check in part["checks"]}
    assert checked == {ranks.ENDED, ranks.ALL, ranks.STEPS, ranks.COMMON, ranks.NAMED}
    assert part["steps"] == 12


@pytest.mark.usefixtures("tools")
def test_counters_of_one_rank_while_the_other_runs() -> None:
    """The stand-ins record something else than these ranks, which really run, meet and end."""
    part = ranks.measure("counters-2", tiny=True)
    assert {check["what"]: check["ok"] for check in part["checks"]} == dict.fromkeys(
        (ranks.ENDED, ranks.ALL, ranks.COUNTED), True
    )


def test_a_job_that_hangs_is_ended_and_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(ranks, "PROGRAM", tmp_path / "hangs.py")
    monkeypatch.setattr(ranks, "SECONDS", 3.0)
    with pytest.raises(RuntimeError, match="hangs"):
        ranks.start(ranks.Job("srun", 2), tmp_path, tiny=True)
