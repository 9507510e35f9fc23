"""Names are untrusted: reports stay readable, files stay in their folder, nothing is run or rendered."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from llm_perf_opt.cli.main import main
from llm_perf_opt.regions.names import short_kernel_name, visible
from llm_perf_opt.regions.table import DEEPEST, POOLED
from llm_perf_opt.report.files import folder_names
from llm_perf_opt.report.markdown import code, plain
from synthetic import make_export

HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "CON",
    "nul.txt",
    "a\x00b",
    "line\nbreak\r\nand\ttab",
    "\x1b[31mred\x1b[0m\x07",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% for x in y %}",
    "[bold]markup[/bold] [/nothing]",
    "`code` | pipe *star* _under_ [link](http://x) ![img](http://x)",
    "=1+1",
    "@SUM(A1)",
    "-rf",
    "$(reboot)`reboot`;reboot",
    "%s%n%x{0}",
    "emoji 🚀🧨 and 层 and עברית",
    "right\u202eleft",
    "A",
    "a",
    "x" * 10_000,
    "a/b@c\\d",
    "",
    " ",
    "trailing. ",
]


def hostile_export(path: Path) -> Path:
    ranges = [(name, 1000 * i, 1000 * i + 900) for i, name in enumerate(HOSTILE)]
    kernels = [(name, 1000 * i + 10, 1000 * i + 20, 1000 * i + 400) for i, name in enumerate(HOSTILE)]
    return make_export(path, ranges, kernels)


class _Text(HTMLParser):
    """Collects tags and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_full_of_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = tmp_path / "jail" / "out"
    source = hostile_export(tmp_path / "run.sqlite")
    before = set(tmp_path.rglob("*"))
    assert main(["report", str(source), "--out", str(inside)]) == 0

    # The terminal shows no control character but line ends.
    shown = capsys.readouterr().out
    assert not [c for c in shown if ord(c) < 32 and c != "\n"]

    # Every file is below the output folder.
    assert {p for p in tmp_path.rglob("*") if inside not in p.parents and p != inside} == before | {tmp_path / "jail"}

    # JSON carries the true names; every region has a folder of its own.
    regions = json.loads((inside / "report.json").read_text())["scopes"][-1]["regions"]
    assert {r["name"] for r in regions} == set(HOSTILE)
    folders = [r["folder"] for r in regions]
    assert len({f.casefold() for f in folders}) == len(HOSTILE)
    assert all((inside / "regions" / f / "kernels.csv").is_file() for f in folders)

    # The page has the tags of its template only, and shows the names as text.
    page = _Text()
    page.feed((inside / "report.html").read_text())
    assert not {"img", "iframe", "link", "object", "embed"} & set(page.tags)
    assert page.tags.count("script") == 2  # the data, and what draws it
    assert all(link.startswith("#") for link in page.links)
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text

    # Markdown: tables keep their columns, and nothing is a link, an image or a tag.
    text = (inside / "report.md").read_text()
    assert "\x1b" not in text
    rendered = _Text()
    rendered.feed(MarkdownIt("commonmark").enable("table").render(text))
    assert not {"a", "script"} & set(rendered.tags)
    assert set(rendered.links) <= {"pictures/stages.svg", "pictures/kernels.svg"}  # ours
    assert rendered.tags.count("img") == len(rendered.links)
    assert "<script>alert(1)</script>" in rendered.text
    assert max(map(len, text.splitlines())) < 3000

    # So do all other pages in Markdown.
    pages = set(inside.rglob("*.md")) - {inside / "report.md"}
    assert len(pages) == len(HOSTILE) + 2
    for path in pages:
        assert not [c for c in path.read_text() if ord(c) < 32 and c != "\n"]
        page = _Text()
        page.feed(MarkdownIt("commonmark").enable("table").render(path.read_text()))
        assert not {"a", "script", "img", "iframe"} & set(page.tags), path

    # CSV: the csv module reads back what was recorded, a spreadsheet sees no formula, and a terminal no escape.
    with (inside / "kernels.csv").open(newline="") as file:
        names = {row["kernel_name"] for row in csv.DictReader(file)}
    shown = {name: "".join(c if c.isprintable() or c in "\n\r\t" else repr(c)[1:-1] for c in name) for name in HOSTILE}
    assert names == {f"'{text}" if text[:1] in ("=", "@", "-") and text else text for text in shown.values()}


@pytest.mark.slow
def test_very_many_different_ranges(tmp_path: Path) -> None:
    """Enough to be cut everywhere; benchmarks/load.py has a hundred thousand."""
    count = 20_500
    ranges = ((f"layer {i}", 10 * i, 10 * i + 9) for i in range(count))
    kernels = ((f"k{i % 7}", 10 * i + 1, 10 * i + 2, 10 * i + 5) for i in range(count))
    source = make_export(tmp_path / "run.sqlite", ranges, kernels)
    out = tmp_path / "out"
    assert main(["report", str(source), "--out", str(out), "--json"]) == 0
    report = json.loads((out / "report.json").read_text())
    assert len(report["scopes"][-1]["regions"]) == count
    assert {d["code"] for d in report["diagnostics"]} >= {"REGION_FOLDERS_CUT"}
    # Readable by a person: the heaviest are shown, the rest is counted.
    assert (out / "report.md").stat().st_size < 200_000
    assert "more regions" in (out / "report.md").read_text()
    assert (out / "report.html").stat().st_size < 8_000_000
    assert len(list((out / "regions").iterdir())) <= 256


def nested(folder: Path, depth: int) -> list[dict[str, Any]]:
    """The regions of a report of so many ranges inside each other, with a kernel in the innermost."""
    ranges = [(f"level {i}", i, 10_000 - i) for i in range(depth)]
    source = make_export(folder / "run.sqlite", ranges, [("k", 5000, 5001, 5100)])
    assert main(["report", str(source), "--out", str(folder / "out"), "--format", "json", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads((folder / "out" / "report.json").read_text())["scopes"][-1]["regions"]
    return found


@pytest.mark.slow
def test_a_thousand_levels_of_nesting(tmp_path: Path) -> None:
    regions = nested(tmp_path, DEEPEST)
    assert [r["inclusive"]["kernel_count"] for r in regions] == [1] * DEEPEST
    assert [r["exclusive"]["kernel_count"] for r in regions] == [0] * (DEEPEST - 1) + [1]


@pytest.mark.slow
def test_levels_beyond_all_reason_are_one_region(tmp_path: Path) -> None:
    regions = nested(tmp_path, DEEPEST + 500)
    assert [r["name"] for r in regions[-2:]] == [f"level {DEEPEST - 1}", POOLED]
    assert len(regions) == DEEPEST + 1
    assert (regions[-1]["instances"], regions[-1]["exclusive"]["kernel_count"]) == (500, 1)


names = st.text(max_size=300)


@given(st.lists(st.tuples(names, st.lists(names, min_size=1, max_size=4)), max_size=30, unique_by=repr))
def test_folder_names_are_safe_and_never_the_same(regions: list[tuple[str, list[str]]]) -> None:
    folders = folder_names(regions)
    assert len({f.casefold() for f in folders}) == len(regions)
    for folder in folders:
        assert folder not in ("", ".", "..")
        assert not set(folder) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+-")
        assert len(folder) < 120
        assert folder[0] not in ".-"
        assert folder[-1] != "."


def test_plain_names_stay_as_they_are() -> None:
    assert folder_names([("LLM", ["prefill"]), ("", ["step", "backward"])]) == ["LLM@prefill", "step__backward"]


@given(names)
def test_what_is_shown_is_one_line_without_control_characters(name: str) -> None:
    for shown in (visible(name), short_kernel_name(name)):
        assert shown
        assert len(shown) <= 200
        assert not [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029\u202e\u2066"]


@given(st.one_of(names, st.text(alphabet="`|\\\\ a<>*[]()!_#&;\n", max_size=20)))
def test_markdown_shows_a_name_as_text_and_tables_keep_their_columns(name: str) -> None:
    page = _Text()
    page.feed(
        MarkdownIt("commonmark").enable("table").render(f"| a | b |\n|---|---|\n| {code(name)} | {plain(name)} |")
    )
    assert page.tags.count("td") == 2
    assert set(page.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
