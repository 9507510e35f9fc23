"""The right ncu and nsys are found, asked what they are, and a missing one is explained."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest

from conftest import installed
from llm_perf_opt.errors import ExitCode, MissingTool
from llm_perf_opt.nsight import tools
from llm_perf_opt.nsight.help_text import validate
from llm_perf_opt.nsight.ncu.argv import NcuOptions, ncu_arguments, without_unknown_defaults
from llm_perf_opt.nsight.nsys.argv import nsys_arguments
from llm_perf_opt.nsight.tools import Tool, find_ncu, find_nsys, known_options, tool_version
from llm_perf_opt.readers import nsys_tool

pytestmark = pytest.mark.process

TRANSCRIPTS = Path(__file__).parent / "transcripts"
REAL = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text())


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No profiler unless the test puts one there; the shell's own commands stay."""
    for variable in ("LLM_PERF_NCU", "LLM_PERF_NSYS", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/bin")


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def fake(path: Path, version: str = "2025.3.1.0") -> Path:
    """An executable that answers with the real tool's words."""
    answers = {"--version": REAL[f"{path.name}-version"]["stdout"].replace("2025.3.1.0", version)}
    if path.name == "ncu":
        names = {"--help": "help", "--list-sets": "sets", "--list-sections": "sections"}
        answers |= {option: (TRANSCRIPTS / f"ncu-2025.3.1-{name}.txt").read_text() for option, name in names.items()}
    else:
        answers["profile --help"] = (TRANSCRIPTS / "nsys-2025.3.1-help.txt").read_text()
    cases = []
    for number, (call, answer) in enumerate(answers.items()):
        file = path.parent / f"{path.name}-answer-{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(answer)
        cases.append(f'  "{call}") exec cat {shlex.quote(str(file))} ;;')
    return program(path, "\n".join(['case "$*" in', *cases, "  *) exit 1 ;;", "esac"]))


FIND = {"ncu": find_ncu, "nsys": find_nsys}
VARIABLE = {"ncu": "LLM_PERF_NCU", "nsys": "LLM_PERF_NSYS"}
both = pytest.mark.parametrize("name", ["ncu", "nsys"])


@both
def test_the_order_of_the_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    product = {"ncu": "nsight-compute/2024.3.0", "nsys": "nsight-systems/2024.3.0/bin"}[name]
    with pytest.raises(MissingTool):
        FIND[name](root=root)
    there = fake(root / "opt/nvidia" / product / name, "2024.3.0.1")
    assert FIND[name](root=root) == Tool(name, there, "2024.3.0.1")

    on_path = fake(tmp_path / "bin" / name, "2023.1.0.0")
    monkeypatch.setenv("PATH", f"{on_path.parent}:/bin")
    assert FIND[name](root=root) == Tool(name, on_path, "2023.1.0.0")

    in_environment = fake(tmp_path / "env" / name, "2022.1.0.0")
    monkeypatch.setenv(VARIABLE[name], str(in_environment))
    assert FIND[name](root=root) == Tool(name, in_environment, "2022.1.0.0")

    configured = fake(tmp_path / "a folder's name" / name)
    assert FIND[name](configured, root=root) == Tool(name, configured, "2025.3.1.0")


def test_the_newest_installation_wins(tmp_path: Path) -> None:
    for version in ("2024.3.2", "2025.10.0", "2025.3.1"):
        fake(tmp_path / f"opt/nvidia/nsight-compute/{version}/ncu", version)
    fake(tmp_path / "usr/local/cuda-13.0/bin/ncu", "2025.3.1")
    assert find_ncu(root=tmp_path).version == "2025.10.0"


def test_numbers_in_the_folder_above_do_not_count(tmp_path: Path) -> None:
    root = tmp_path / "2099.9.9"
    newest = fake(root / "usr/local/cuda-13.0/nsight-compute-2025.3.1/ncu")
    fake(root / "opt/nvidia/nsight-compute/2024.1.1/ncu")
    assert find_ncu(root=root).path == newest


def test_the_nsys_inside_nsight_compute_is_the_last_resort_of_its_version(tmp_path: Path) -> None:
    inside = fake(tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys")
    assert find_nsys(root=tmp_path).path == inside
    own = fake(tmp_path / "opt/nvidia/nsight-systems/2025.3.1/bin/nsys")
    assert find_nsys(root=tmp_path).path == own


def test_the_nsys_inside_a_nsight_compute_that_stands_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = fake(tmp_path / "anywhere/ncu")
    inside = fake(tmp_path / "anywhere/host/target-linux-x64/nsys")
    monkeypatch.setenv("LLM_PERF_NCU", str(ncu))
    assert find_nsys(root=tmp_path / "empty").path == inside
    assert inside in nsys_tool.installed_nsys(tmp_path / "empty")


@both
def test_the_toolkit_that_the_environment_names_comes_before_the_usual_folders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"ncu": "opt/nvidia/nsight-compute/2025.3.1/ncu", "nsys": "opt/nvidia/nsight-systems/2025.3.1/bin/nsys"}
    fake(tmp_path / "root" / usual[name])
    inside = {"ncu": "nsight-compute-2024.1.1/ncu", "nsys": "nsight-systems-2024.1.1/bin/nsys"}
    chosen = fake(tmp_path / "cuda" / inside[name], "2024.1.1.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert FIND[name](root=tmp_path / "root") == Tool(name, chosen, "2024.1.1.0")


@both
def test_how_a_tool_was_found_is_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake(tmp_path / 'bin' / name).parent}:/bin")
    assert FIND[name](root=tmp_path).source == "PATH"
    monkeypatch.setenv(VARIABLE[name], str(tmp_path / "bin" / name))
    assert FIND[name](root=tmp_path).source == VARIABLE[name]


@both
def test_a_wrapper_that_outlived_its_package_is_passed_over(name: str, tmp_path: Path) -> None:
    broken = tmp_path / f"usr/local/cuda-13.0/bin/{name}"
    program(broken, "echo 'ERROR: no Nsight installation found' >&2; exit 1")
    with pytest.raises(MissingTool, match="ERROR: no Nsight installation found"):
        FIND[name](root=tmp_path)
    works = fake(tmp_path / {"ncu": "usr/lib/nsight-compute/ncu", "nsys": "usr/lib/nsight-systems/bin/nsys"}[name])
    assert FIND[name](root=tmp_path).path == works


@both
def test_a_missing_tool_says_where_was_looked_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingTool) as error:
        FIND[name](root=tmp_path)
    assert error.value.code == ExitCode.MISSING_TOOL
    assert all(place in error.value.message for place in ("PATH", VARIABLE[name], "/opt/nvidia/", "/usr/local/cuda"))
    assert f"{VARIABLE[name]}=/path/to/{name}" in error.value.fix
    assert "Install" in error.value.fix


@both
@pytest.mark.parametrize("by", ["configuration", "environment"])
def test_what_is_named_and_wrong_is_not_replaced(
    name: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    for wrong in (tmp_path, tmp_path / "nothing", program(tmp_path / "other", "echo hello")):
        if by == "environment":
            monkeypatch.setenv(VARIABLE[name], str(wrong))
        with pytest.raises(MissingTool, match=re.escape(str(wrong))) as error:
            FIND[name](str(wrong) if by == "configuration" else None, root=tmp_path)
        assert name in error.value.fix


@pytest.mark.parametrize(
    ("says", "version"),
    [
        (REAL["ncu-version"]["stdout"], "2025.3.1.0"),
        (REAL["nsys-version"]["stdout"], "2025.3.1.0"),
        ("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0\n", "2023.4.4.54"),
    ],
)
def test_versions_of_both_tools(says: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "says").write_text(says)
    assert tool_version(program(tmp_path / "tool", f"cat {tmp_path / 'says'}")) == version


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    hanging = program(tmp_path / "ncu", f"sleep 60 & echo $! > {tmp_path / 'pid'}; wait")
    for seconds in (0.5, 2.0, 8.0):  # where the machine is busy, it has not even begun after the first
        with pytest.raises(MissingTool, match=f"did not answer within {seconds:g} s"):
            tool_version(hanging, timeout_s=seconds)
        if (tmp_path / "pid").exists():
            break
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not alive(child):
            return
        time.sleep(0.05)
    pytest.fail("the child of the wrapper is still running")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    not_a_program = tmp_path / "ncu"
    not_a_program.write_bytes(b"\x7fELF rubbish")
    not_a_program.chmod(0o755)
    with pytest.raises(MissingTool, match="cannot be run"):
        tool_version(not_a_program)


def test_options_are_read_from_the_very_tool(tmp_path: Path) -> None:
    ncu, nsys = find_ncu(fake(tmp_path / "ncu")), find_nsys(fake(tmp_path / "nsys"))
    assert str(ncu) == "ncu 2025.3.1.0"
    assert known_options(ncu)["--set"].values == ("basic", "detailed", "full", "nvlink", "pmsampling", "roofline")
    (found,) = validate(ncu_arguments("out", set="brief"), known_options(ncu), str(ncu))
    assert found.message.startswith("ncu 2025.3.1.0 does not allow 'brief' for --set")
    assert validate(nsys_arguments("out"), known_options(nsys)) == []


def test_a_library_found_beside_nsys_is_put_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = fake(tmp_path / "target-linux-x64/nsys")
    monkeypatch.setattr(tools, "has_importer_library", lambda: False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert tools.library_path_for(nsys) is None
    host = tmp_path / "host-linux-x64"
    host.mkdir()
    (host / tools.IMPORTER_LIBRARY).touch()
    assert tools.library_path_for(nsys) == f"{host}{os.pathsep}/mine"
    monkeypatch.setattr(tools, "has_importer_library", lambda: True)
    assert tools.library_path_for(nsys) is None


def test_the_importer_is_found_beside_nsys_wherever_nsys_is(tmp_path: Path) -> None:
    root = tmp_path / "nsight-systems"
    nsys = fake(root / "target-linux-x64/nsys")
    assert tools.importer_of(nsys) is None
    importer = program(root / "host-linux-x64/QdstrmImporter", "")
    (root / "bin").mkdir()
    (root / "bin/nsys").symlink_to("../target-linux-x64/nsys")
    assert tools.importer_of(nsys) == tools.importer_of(root / "bin/nsys") == importer
    inside = fake(tmp_path / "nsight-compute/host/target-linux-x64/nsys")
    its = program(tmp_path / "nsight-compute/host/linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "")
    assert tools.importer_of(inside) == its


INSTALLED = {name: installed(name) for name in ("ncu", "nsys")}


@both
def test_the_installed_tool_takes_the_default_command(name: str) -> None:
    if not INSTALLED[name]:
        pytest.skip(f"no {name} on this machine")
    tool = FIND[name](INSTALLED[name])
    known = known_options(tool)
    if name == "ncu":
        argv = ncu_arguments("out", options=without_unknown_defaults(NcuOptions(), known), set="basic")
    else:
        argv = nsys_arguments("out")
    assert validate(argv, known, str(tool)) == []
