"""A program that is started several times is compiled once, also where Python may not write compiled files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_perf_opt.cli.main import main
from llm_perf_opt.process.bytecode import bytecode_cache

PROGRAM = """
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("helper")
cached = pathlib.Path(importlib.util.cache_from_source(spec.origin))
with open("seen", "a") as file:
    file.write(f"{cached.exists()} {sys.pycache_prefix}\\n")
import helper, nvtx
with nvtx.annotate("step"):
    pass
"""


@pytest.mark.process
def test_the_second_start_finds_what_the_first_has_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert main(["measure", "--runs", "2", "--out", "run", "--quiet", "--", sys.executable, "program.py"]) == 0
    (first, folder), (second, cache) = (line.split() for line in (tmp_path / "seen").read_text().splitlines())
    assert (first, folder) == ("False", "None")  # the first is as it would be without us
    assert second == "True"
    assert not Path(cache).exists()
    assert not (tmp_path / "__pycache__").exists()
    assert cache not in (tmp_path / "run" / "measure" / "cmd.txt").read_text()


@pytest.mark.parametrize("environment", [{}, {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "theirs"}])
def test_a_cache_of_the_program_s_own_stays(environment: dict[str, str]) -> None:
    with bytecode_cache(environment) as cache:
        assert cache.variables() == cache.while_running() == {}
