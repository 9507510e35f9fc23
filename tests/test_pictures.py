"""Pictures beside `report.md`: valid SVG, the same bytes each time, numbers of the report, names as text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import report
from llm_perf_opt.report.pictures import pictures
from llm_perf_opt.report.text import duration
from llm_perf_opt.report.view import view_of
from llm_perf_opt.report.write import write_report
from performance import evaluate
from synthetic import make_export

DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*names: str, evaluated: bool = True) -> dict[str, ElementTree.Element]:
    found = report(*names)
    return {p.name: ElementTree.fromstring(p.svg) for p in pictures(view_of(evaluate(found) if evaluated else found))}


def texts(picture: ElementTree.Element) -> str:
    return "\n".join(element.text or "" for element in picture.iter(f"{SVG}text"))


def test_marks_are_those_of_the_report() -> None:
    found = evaluate(report(*DECODER))
    shown = {p.name: ElementTree.fromstring(p.svg) for p in pictures(view_of(found))}
    assert set(shown) == {"stages.svg", "kernels.svg", "roofline.svg"}
    assert found.main_scope
    stages = [r for r in found.main_scope.regions if r.key in found.stages]
    bars = [r for r in shown["stages.svg"].iter(f"{SVG}rect") if r.get("height") == "22"]
    assert len(bars) == 3 * len(stages)
    for stage in stages:
        assert duration(stage.wall_ns) in texts(shown["stages.svg"])
    working = [p for s in stages if s.performance for p in s.performance.signatures if p.intensity]
    dots = [c for c in shown["roofline.svg"].iter(f"{SVG}circle") if c.get("fill-opacity")]
    assert len(dots) == len(working)
    assert "tensor bf16" in texts(shown["roofline.svg"])
    assert "tensor fp8" not in texts(shown["roofline.svg"])  # nothing worked with it


def test_bars_are_as_long_as_their_time() -> None:
    picture = drawn(*DECODER)["kernels.svg"]
    widths = [float(r.get("width", 0)) for r in picture.iter(f"{SVG}rect") if r.get("height") == "17"]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == 12


def test_without_counters_there_is_no_roofline_and_no_reference_to_one(tmp_path: Path) -> None:
    assert "roofline.svg" not in drawn("nsys-*-decoder-8layers-warm.sqlite", evaluated=False)
    write_report(report("nsys-*-decoder-8layers-warm.sqlite"), tmp_path, ["md"])
    text = (tmp_path / "report.md").read_text()
    assert "](pictures/stages.svg)" in text
    assert "roofline.svg" not in text
    assert {p.name for p in (tmp_path / "pictures").iterdir()} == {"stages.svg", "kernels.svg"}


def test_the_same_report_gives_the_same_bytes() -> None:
    first, second = (pictures(view_of(evaluate(report(*DECODER)))) for _ in range(2))
    assert first == second
    assert not any("20" + "26" in picture.svg for picture in first)  # no date


def test_the_copy_in_a_run_directory_finds_the_pictures(tmp_path: Path) -> None:
    write_report(report("nsys-*-decoder-8layers-warm.sqlite"), tmp_path, ["md"], regions="ncu/regions")
    text = (tmp_path / "ncu" / "regions" / "report.md").read_text()
    assert "](../../pictures/stages.svg)" in text
    assert (tmp_path / "ncu" / "regions" / "../../pictures/stages.svg").is_file()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b < c", "\ufffe\x01\ud800"[:2], "x" * 4000, ""])
def test_a_hostile_name_is_text(tmp_path: Path, name: str) -> None:
    found = report(make_export(tmp_path / "r.sqlite", [(name, 0, 900)], [(name, 10, 20, 400)]))
    for picture in pictures(view_of(evaluate(found))):
        tree = ElementTree.fromstring(picture.svg)
        assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
            "svg", "style", "rect", "text", "line", "path", "circle"
        }  # fmt: skip
