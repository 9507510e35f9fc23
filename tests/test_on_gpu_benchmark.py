"""What is measured on a GPU, piece by piece: every piece is a benchmark there is, and time that is short begins none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import on_gpu
import try_levers
from provenance import RESULTS


def test_every_piece_is_a_program_of_its_own_name() -> None:
    assert len({piece.name for piece in on_gpu.PIECES}) == len(on_gpu.PIECES)
    assert all((on_gpu.HERE / piece.words[0]).is_file() for piece in on_gpu.PIECES)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, within: str = "9") -> int:
    (tmp_path / "measure.py").write_text(program)
    piece = on_gpu.Piece("one", (str(tmp_path / "measure.py"),), "one-h200", 5)
    monkeypatch.setattr(on_gpu, "PIECES", (piece,))
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--out", str(tmp_path / "out"), "--within", within])
    return on_gpu.main()


@pytest.mark.process
def test_results_go_where_earlier_ones_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import sys; print('measured'); open(sys.argv[-1] + '.json', 'w').write('{}'); sys.exit(1)"
    assert run(monkeypatch, tmp_path, program) == 1
    assert json.loads((tmp_path / "out" / "on-gpu.json").read_text())["one"]["exit_code"] == 1
    assert (tmp_path / "out" / "on-gpu.log").read_text() == "\n== one\nmeasured\n"
    assert (tmp_path / "out" / "one-h200.json").read_text() == "{}"
    earlier = next(RESULTS.glob("lines-h200.json"))
    assert (tmp_path / "out" / earlier.name).read_text() == earlier.read_text()


def test_a_piece_that_would_not_end_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, "raise SystemExit(1)", within="4") == 0
    assert not (tmp_path / "out" / "on-gpu.json").exists()


def test_trials_go_on_with_what_is_not_measured_yet() -> None:
    parts = try_levers.parts_of("moe,train:levers")
    assert parts == [("moe", "broken"), ("moe", "levers"), ("train", "levers")]
    rows = {
        "moe": {"levers_commit": "abc", "error": "", "broken_commit": "old"},
        "train": {"levers_commit": "abc", "error": "it failed"},
    }
    assert try_levers.missing(parts, rows, "abc") == [("moe", "broken"), ("train", "levers")]
    rows["moe"]["levers_commit"] = "old"  # known by an older commit: those of which nothing is known come first
    assert try_levers.missing(try_levers.parts_of("moe:levers,fp32:levers"), rows, "abc") == [
        ("fp32", "levers"),
        ("moe", "levers"),
    ]
    assert len(try_levers.parts_of("")) == 2 * len(try_levers.KINDS)
    with pytest.raises(ValueError, match="no part moe:all"):
        try_levers.parts_of("moe:all")


def test_no_trial_is_begun_that_would_not_end_in_time() -> None:
    assert list(try_levers.measured(try_levers.parts_of("fp32"), 1, 70.0, 1.0)) == []


@pytest.mark.process
def test_a_trial_that_takes_too_long_is_ended_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_levers, "_AFTER_S", 30.0)
    writes = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True); time.sleep(600)"
    )
    begun = subprocess.Popen([sys.executable, "-c", writes], stdout=subprocess.PIPE, start_new_session=True)
    assert begun.stdout is not None
    with begun.stdout:
        begun.stdout.readline()
        assert "stopped after 31 s" in try_levers.end_in_time(begun, 31.0)
    assert begun.returncode == 7
