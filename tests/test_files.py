"""Files are written whole or not at all, never through a link; processes are known by what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.files import cache_folder, finished_name, replacing, unfinished_name, write_text
from llm_perf_opt.nsight.nsys.recording_size import recording_bytes
from llm_perf_opt.processes import family, is_alive, started_at


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_text(path, "old")

    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("untouched")
    path = tmp_path / "file.json"
    path.symlink_to(other)
    unfinished_name(path).symlink_to(other)
    write_text(path, "new \udcff")
    assert other.read_text() == "untouched"
    assert not path.is_symlink()
    assert path.read_text() == "new \\udcff"


def test_half_written_files_are_known_by_their_name() -> None:
    assert finished_name(unfinished_name(Path("a/b.json")).name) == "b.json"
    assert finished_name(".b.json.tmp") == "b.json"
    assert finished_name("b.json") is None


@pytest.mark.parametrize(
    ("variable", "expected"), [("/caches", "/caches"), ("", "/home/me/.cache"), ("rel", "/home/me/.cache")]
)
def test_the_cache_is_where_it_always_was(variable: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert cache_folder() == Path(expected) / "llm-perf-opt"


@pytest.mark.process
def test_a_recording_counts_while_a_descendant_holds_it_open_even_deleted(tmp_path: Path) -> None:
    code = (
        "import os, sys; files = [open(sys.argv[1] + n, 'wb') for n in ('/a.qdstrm', '/b.nsys-rep', '/c.txt')]\n"
        "[(f.write(bytes(1000)), f.flush()) for f in files]; os.unlink(sys.argv[1] + '/a.qdstrm')\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}, sys.argv[1]])"
    command = [sys.executable, "-c", outer, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(family(process.pid)) == 2
        assert recording_bytes(process.pid) == 2000
        assert is_alive(process.pid)
        assert (started_at(process.pid) or 0) >= (started_at(os.getpid()) or 0)
        process.communicate(b"")
    assert not is_alive(process.pid)
    assert recording_bytes(process.pid) == 0


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**70])
def test_no_process_has_such_a_number(pid: int) -> None:
    assert not is_alive(pid)
    assert pid == 0 or family(pid) == []
