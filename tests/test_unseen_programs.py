"""Programs that nobody tuned for are graded by the letter of the page on grading in benchmarks/unseen_programs."""

from __future__ import annotations

import json
import lzma
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "unseen_programs"))
import grade

FOLDER = grade.HERE
TRUTHS: dict[str, Any] = tomllib.loads((FOLDER / "truth.toml").read_text(encoding="utf-8"))
TIMES: dict[str, Any] = json.loads((FOLDER / "h200" / "times.json").read_text(encoding="utf-8"))


def said(stage: str, *fixes: tuple[str, float]) -> grade.Said:
    return grade.Said(stage, "gpu", "high", "", tuple(grade.Share(*fix) for fix in fixes), None)


def graded(program: str, answer: grade.Said, **read: Any) -> grade.Row:
    return grade.row(
        program, TRUTHS[program], TIMES["programs"][program], answer, {"verdict": "right", "why": "", **read}
    )


def test_a_first_fix_is_graded_by_the_lists_of_the_truth() -> None:
    assert graded("odd_hidden", said("whole recording", ("gemm.align", 0.6))).grade == "right"
    assert graded("odd_hidden", said("whole recording", ("gemm.shape", 0.6))).grade == "unsure"
    assert graded("odd_hidden", said("whole recording")).grade == "unsure"  # a fault was planted
    assert graded("odd_hidden", said("whole recording", ("host.data", 0.6)), first="right").grade == "wrong"  # host.*
    assert graded("odd_hidden", said("whole recording", ("unheard.of", 0.6))).grade == "wrong"
    assert graded("compiled", said("whole recording")).grade == "right"  # tuned
    assert graded("compiled", said("whole recording", ("host.unknown", 0.1))).grade == "wrong"  # host.*


def test_a_fix_that_misleads_further_down_drops_the_grade_where_it_promises_much() -> None:
    assert graded("odd_hidden", said("step", ("gemm.align", 0.6), ("launch.graph", 0.11))).grade == "unsure"
    assert graded("odd_hidden", said("step", ("gemm.align", 0.6), ("launch.graph", 0.09))).grade == "right"


def test_the_number_of_one_layer_is_no_stage() -> None:
    fix = ("moe.loop", 0.9)
    assert graded("moe_loop", said("layers.3.mlp.experts", fix), first="right").grade == "unsure"
    assert graded("moe_loop", said("layers.*.mlp.experts", fix), first="right").grade == "right"
    assert grade.grade_stage(TRUTHS["fp32_training"], "train\\/backward") == "right"
    assert grade.grade_stage(TRUTHS["rlhf"], "ProfilerStep#*/rollout") == "right"
    assert grade.grade_stage(TRUTHS["kv_offload"], "decode_step/layer.4") == "wrong"
    together = "decode_step/layer.4 takes 9 ms; the 6 stages decode_step/layer.*, which are alike, take 54 ms."
    assert grade.grade_stage(TRUTHS["kv_offload"], "decode_step/layer.4", together) == "right"
    assert grade.grade_stage(TRUTHS["kv_offload"], "decode_step/layer.*") == "right"


def test_a_sentence_that_must_not_stand_there_makes_the_answer_wrong() -> None:
    right = said("decode")
    assert graded("decode_graph", right).grade == "right"
    assert graded("decode_graph", right, statements=["compute-bound"]).grade == "wrong"


@pytest.mark.parametrize(
    ("predicted", "grade_of_it"), [(0.69, "right"), (0.47, "right"), (0.3, "unsure"), (0.2, "wrong")]
)
def test_a_gain_is_graded_by_what_was_measured(predicted: float, grade_of_it: str) -> None:
    """69 % were measured."""
    assert graded("odd_hidden", said("whole recording", ("gemm.align", predicted))).gain_grade == grade_of_it


def test_what_failed_while_it_was_timed_is_left_out() -> None:
    row = graded("numpy_sampling", said("sample", ("host.python", 0.9)), useful=True)
    assert (row.grade, row.useful) == ("left out", False)


def test_there_is_one_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    before = grade.FIRST_LOOK.read_bytes()
    monkeypatch.setattr(sys, "argv", ["grade.py", "--first-look"])
    with pytest.raises(SystemExit, match="one first look"):
        grade.main()
    assert grade.FIRST_LOOK.read_bytes() == before


def test_the_result_has_every_program_and_its_first_look() -> None:
    result = json.loads((grade.RESULTS / "unseen-programs-h200.json").read_text(encoding="utf-8"))
    assert [one["program"] for one in result["programs"]] == list(TRUTHS)
    assert {one["program"]: one["first_look"] for one in result["programs"]} == {
        name: entry["grade"] for name, entry in grade.first_look().items() if isinstance(entry, dict)
    }


def test_recordings_of_the_programs_name_no_machine() -> None:
    found = grade.traces(FOLDER / "h200")
    assert set(found) == set(TRUTHS)
    for path in (*found.values(), FOLDER / "h200" / "times.json"):
        text = path.read_bytes() if path.suffix == ".json" else lzma.decompress(path.read_bytes())
        assert re.findall(rb"/(?:tmp|root|home|mnt|opt|usr|var)/[^\"]*", text) == [], path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["checkpointed", "grad_accumulation", "long_context_math", "mamba_scan", "two_streams"]
)
def test_what_was_wrong_or_unsure_at_the_first_look_stays_mended(program: str) -> None:
    """The recording, and the answer as somebody has read it."""
    answer = grade.ask(FOLDER / "h200" / f"{program}.json.xz")
    read = grade.readings()[program, answer.short]
    assert grade.first_look()[program]["grade"] != "right"
    assert grade.row(program, TRUTHS[program], TIMES["programs"][program], answer, read).grade == "right"
