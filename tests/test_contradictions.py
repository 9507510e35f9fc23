"""No report says what the recording, or another sentence of it, contradicts; and the checks would see it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attrs import evolve

from conftest import RECORDINGS, SHARED, recording, report
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import NCUProfileRegionReport, RegionPerformance

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from contradictions import LAYERS, contradictions, recordings
from recording_parts import cut

ALL = recordings(SHARED)


@pytest.mark.parametrize("path", [p for p in ALL if p.parent == RECORDINGS], ids=lambda path: path.name)
def test_no_sentence_contradicts_the_recording(path: Path) -> None:
    assert list(contradictions(report(path))) == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("path", [p for p in ALL if p.parent != RECORDINGS], ids=lambda path: path.name)
def test_no_sentence_contradicts_a_recording_beside_the_repository(path: Path) -> None:
    assert list(contradictions(report(path))) == []


@pytest.mark.parametrize("part", [{"window": [0.01, 0.1]}, *({"without": list(layer)} for layer in LAYERS)], ids=str)
@pytest.mark.parametrize("name", ["nsys-*-ranks.sqlite", "nsys-*-threads.sqlite", "kineto-*-2layers.json"])
def test_nor_where_some_of_it_was_not_recorded(name: str, part: dict[str, list[str]], tmp_path: Path) -> None:
    assert list(contradictions(report(cut(recording(name), part, tmp_path)))) == []


def test_processes_are_no_warm_up_of_each_other(tmp_path: Path) -> None:
    """Of two that begin one after the other, the first took longer."""
    found = report(cut(recording("nsys-*-ranks.sqlite"), {"window": [0.01, 0.1]}, tmp_path)).main_scope
    assert found is not None
    (whole,) = [region for region in found.regions if region.is_whole_recording]
    assert whole.timing is not None
    assert (whole.instances, whole.timing.warmup.instances) == (2, 0)


def changed(**parts: object) -> NCUProfileRegionReport:
    """A report whose first stage has a performance with other parts."""
    found = report("nsys-*-train.sqlite")
    assert found.main_scope is not None
    regions = [
        evolve(r, performance=evolve(r.performance, **parts)) if r.key == found.answer.stage and r.performance else r
        for r in found.main_scope.regions
    ]
    return evolve(found, scopes=[*found.scopes[:-1], evolve(found.main_scope, regions=regions)])


def stage() -> RegionPerformance:
    found = report("nsys-*-train.sqlite")
    assert found.main_scope is not None
    (performance,) = [r.performance for r in found.main_scope.regions if r.key == found.answer.stage]
    assert performance is not None
    return performance


def seen(found: NCUProfileRegionReport) -> str:
    return " ".join(contradictions(found))


def test_contradictions_are_seen() -> None:
    of = stage()
    assert of.speed_of_light is not None
    assert of.time.idle is not None
    assert of.idle is not None
    assert seen(changed()) == ""
    assert "waits 0" in seen(changed(speed_of_light=evolve(of.speed_of_light, waiting=nanoseconds(0))))
    assert "idle for 1 % alone" in seen(changed(time=evolve(of.time, idle=of.time.idle * 0.01)))
    assert "idle for" in seen(changed(time=evolve(of.time, idle=of.time.idle * 2)))
    assert "gains of" in seen(changed(opportunities=of.opportunities * 2))
    assert "causes of" in seen(changed(idle=evolve(of.idle, causes=of.idle.causes * 2)))
    assert "families are" in seen(changed(families=of.families * 2))
    assert "flops is 0" in seen(changed(work=evolve(of.work, flops=Quantity(0, "FLOP"))))
    assert "nothing was launched" in seen(changed(verdict=evolve(of.verdict, text="Nothing was launched on the GPU.")))


def test_an_answer_of_two_stages_is_seen() -> None:
    found = report("nsys-*-train.sqlite")
    swapped = evolve(found.answer, fixes=found.answer.fixes[::-1])
    assert "the first fix is of" in seen(evolve(found, answer=swapped))
    assert "no region" in seen(evolve(found, answer=evolve(found.answer, stage="another")))
