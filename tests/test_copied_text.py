"""What a report offers to copy is one word for the shell, whatever a range is called."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest

from llm_perf_opt.cli.main import main
from llm_perf_opt.regions.shell import shell_line, shell_word
from synthetic import make_export

NAMES = [
    "$(touch owned)", "`touch owned`", "a; touch owned", "it's", 'say "hi"', "two\nlines", "-rf", "--help", "a|b", "a&b",
    "\x1b[31mred", "\u202eback", "* ?", "~root", "$HOME", "back\\slash", "%s %d", "!!", "tab\there", "ä€", "#x", "{a,b}",
]  # fmt: skip


def words_of(line: str, folder: Path) -> list[str]:
    """What a shell makes of a line behind a command: printf stands for ncu."""
    done = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, cwd=folder, check=True)
    assert not done.stderr
    assert not list(folder.rglob("owned"))
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
def test_a_word_is_one_word_and_does_nothing(name: str, tmp_path: Path) -> None:
    line = shell_line(["--nvtx-include", f"{name}/"])
    assert line.isprintable()
    assert words_of(line, tmp_path) == ["--nvtx-include", f"{name}/"]


def test_no_argument_holds_a_zero_byte() -> None:
    assert "\0" not in shell_word("a\0b")


@pytest.mark.process
def test_everything_that_is_offered_to_copy_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "4000")
    source = make_export(
        tmp_path / "run $(touch owned).sqlite",
        [(name, 1000 * i, 1000 * i + 990) for i, name in enumerate(NAMES)],
        [("k", 1000 * i + 10, 1000 * i + 20, 1000 * i + 50) for i in range(len(NAMES))],
    )
    assert main(["report", str(source), "--out", str(tmp_path / "out")]) == 0
    assert main(["ranges", str(source), "--json"]) == 0
    wanted = {tuple(found["ncu_options"]) for found in json.loads(capsys.readouterr().out.splitlines()[-1])["ranges"]}
    assert len(wanted) == len(NAMES)
    assert main(["ranges", str(source)]) == 0
    shown = [line.partition("--nvtx-include")[1:] for line in capsys.readouterr().out.splitlines()]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert {tuple(words_of("".join(line).rstrip(), empty)) for line in shown if line[0]} == wanted
    page = (tmp_path / "out/report.html").read_text()
    offered = json.loads(re.search(r'"nvtx": ?(\[.*?\](?=, ?"))', page, re.DOTALL)[1])  # type: ignore[index]
    assert {tuple(words_of(line, empty)) for line in offered if line} == wanted
    for text in re.findall(r'<div class="copyable"><code>(.*?)</code>', page):
        assert words_of(html.unescape(text), empty)
    reports = [file.read_text() for file in (tmp_path / "out").rglob("report.md") if file.parent.name != "out"]
    spans = [re.search(r"Select it in `ncu --nvtx` with (`+) ?(--nvtx-include .*?) ?\1", text) for text in reports]
    assert {tuple(words_of(span[2], empty)) for span in spans if span} == wanted
