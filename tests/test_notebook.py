"""What a notebook shows and does: rich displays, `region`, and the cell magic."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

import llm_perf_opt
from conftest import recording
from llm_perf_opt.api.result import Report
from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads import marks
from llm_perf_opt.workloads.notebook_cell import measure_cell, parse_options
from synthetic import make_export

DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")


@pytest.fixture(scope="module")
def opened() -> Report:
    return llm_perf_opt.open(*map(recording, DECODER))


# -- displays ----------------------------------------------------------------------------------------


def test_a_report_is_shown_as_html_and_as_markdown(opened: Report) -> None:
    for shown in (opened._repr_html_(), opened._repr_markdown_()):
        assert "LLM@decode takes 125 ms" in shown.replace("\\", "")
        assert "3,896" in shown or "3896" in shown
    assert opened.answer._repr_html_().count("<dt>") == 3


def test_the_tree_has_regions_inside_regions(opened: Report) -> None:
    html, markdown = opened.tree._repr_html_(), opened.tree._repr_markdown_()
    assert ElementTree.fromstring(f"<d>{html}</d>").findall(".//tr")
    assert html.count("<tr>") == 1 + len(opened.main_scope.regions)
    assert html.index("decode_step") > html.index("LLM@decode")
    assert len(markdown.splitlines()) == 2 + len(opened.main_scope.regions)
    assert "launch-bound" in repr(opened.tree)


def test_the_roofline_is_a_picture_of_its_own(opened: Report) -> None:
    shown = opened.roofline._repr_html_()
    data = shown.partition("base64,")[2].partition('"')[0]
    assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")
    assert "<style" not in shown  # it would reach the notebook around it
    timeline = llm_perf_opt.open(recording("nsys-*-train.sqlite"))
    assert "llm-perf profile" in timeline.roofline._repr_html_()


def test_names_are_never_markup(tmp_path: Path) -> None:
    found = llm_perf_opt.open(
        make_export(tmp_path / "r.sqlite", [("<b onload=x>|`*", 0, 900)], [("k<i>", 10, 20, 400)])
    )
    for html in (found._repr_html_(), found.tree._repr_html_(), found.answer._repr_html_()):
        assert "<b onload" not in html
    for line in found.tree._repr_markdown_().splitlines():
        assert line.replace("\\|", "").count("|") == 8
    for markdown in (found._repr_markdown_(), found.tree._repr_markdown_()):
        assert "<b onload" not in MarkdownIt("commonmark").enable("table").render(markdown)


def test_the_example_shows_what_it_would_show_now() -> None:
    """Otherwise: python tools/execute_notebook.py"""
    text = (Path(__file__).parents[1] / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    compared = 0
    for cell in itertools.takewhile(lambda cell: not cell["source"].startswith("%"), cells):
        *body, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(body, []), "notebook", "exec"), names)
        assert isinstance(last, ast.Expr)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        (output,) = cell["outputs"]
        shown = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        assert "".join(shown) == (printed.getvalue() or repr(value))
        if value is not None:
            assert "".join(output["data"]["text/html"]) == value._repr_html_()
        compared += 1
    assert compared == 4
    assert all(cell["outputs"] for cell in cells if not cell["source"].startswith("%load_ext"))


# -- region ------------------------------------------------------------------------------------------


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches NVTX, in order."""
    seen: list[str] = []

    class Domain:
        def get_event_attributes(self, message: str) -> str:
            return message

        def push_range(self, attributes: str) -> None:
            seen.append(attributes)

        def pop_range(self) -> None:
            seen.append("end")

    monkeypatch.setattr(marks, "_domain", Domain())
    monkeypatch.setattr(marks, "_attributes", {})
    return seen


def test_a_block_and_a_function_are_marked(pushed: list[str]) -> None:
    with llm_perf_opt.region("decode"):
        pass

    @llm_perf_opt.region
    def prefill(n: int) -> int:
        return n if n == 0 else prefill(n - 1)

    @llm_perf_opt.region("step")
    def other() -> str:
        """Words."""
        return "done"

    assert prefill(1) == 0
    assert other() == "done"
    assert (other.__name__, other.__doc__) == ("other", "Words.")
    assert pushed == ["decode", "end", "prefill", "prefill", "end", "end", "step", "end"]


def test_a_range_is_closed_when_the_block_fails(pushed: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), llm_perf_opt.region("decode"):
        1 / 0  # noqa: B018
    assert pushed == ["decode", "end"]


def test_what_a_range_cannot_follow_is_refused() -> None:
    async def serve() -> None: ...

    def produce() -> Any:
        yield 1

    for function in (serve, produce, 3):
        with pytest.raises(TypeError):
            llm_perf_opt.region(function)


@pytest.mark.process
def test_without_nvtx_and_torch_it_does_nothing() -> None:
    code = """
import sys
sys.modules["nvtx"] = sys.modules["torch"] = None
import llm_perf_opt
with llm_perf_opt.region("decode"):
    print("inside", "numpy" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout == "inside False\n"


# -- the cell ----------------------------------------------------------------------------------------


def test_a_cell_is_run_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    calls: list[int] = []
    found = measure_cell(lambda: calls.append(1), runs=2, warmup=3)
    assert (len(calls), len(found.times), len(found.warmup)) == (5, 2, 3)
    assert "median of 2" in repr(found)
    assert "not profiled" in found._repr_markdown_()
    assert found._repr_html_().startswith("<p>")


def test_what_stands_behind_the_magic() -> None:
    assert (parse_options("").runs, parse_options("--runs 5 --name x").name) == (3, "x")
    for wrong in ("--runs 0", "--warmup -1", "--rns 3"):
        with pytest.raises(UserError):
            parse_options(wrong)


@pytest.mark.torch
@pytest.mark.slow
def test_a_cell_with_torch_is_profiled() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(64, 64)

    def cell() -> None:
        with llm_perf_opt.region("product"):
            x @ x

    found = measure_cell(cell, runs=1, warmup=0)
    assert found.report is not None
    assert "LLM@cell/LLM@product" in {r.key.replace("\\", "") for r in found.report.main_scope.regions}
    assert "LLM" in found._repr_html_()


def test_the_magic_runs_the_cell_in_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "llm_perf_opt")
    shell.user_ns["count"] = 0
    found = shell.run_cell_magic("llm_perf", "--runs 2 --warmup 0 --name kept", "count += 1")
    assert (shell.user_ns["count"], len(found.times)) == (2, 2)
    assert shell.user_ns["kept"] is found
