"""The nsys command lines: light by default, complete where one setting needs another."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import installed, recording
from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.help_text import parse_nsys_help, validate
from llm_perf_opt.nsight.nsys.argv import (
    NsysOptions,
    build_nsys_cmd,
    build_nsys_export_cmd,
    build_nsys_stats_cmd,
    environment,
    nsys_arguments,
)

TRANSCRIPTS = Path(__file__).parent / "transcripts"
KNOWN = parse_nsys_help((TRANSCRIPTS / "nsys-2025.3.1-help.txt").read_text())
REAL = json.loads((TRANSCRIPTS / "ncu-nsys-2025.3.1-h200.json").read_text())
WORK = ["python3", "small.py"]
LIGHT = ["--trace", "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none"]
LONG = {"-s": "--sample", "-t": "--trace", "-c": "--capture-range", "-p": "--nvtx-capture"}


def test_the_default_is_the_light_timeline() -> None:
    assert build_nsys_cmd("out", WORK) == ["nsys", "profile", *LIGHT, "-o", "out", *WORK]


@pytest.mark.parametrize(
    ("transcript", "settings"), [("nsys-ok", {}), ("nsys-capture-range-end-stop", {"capture_range": "cudaProfilerApi"})]
)
def test_what_the_real_nsys_was_called_with_can_be_built(transcript: str, settings: dict[str, str]) -> None:
    real = REAL[transcript]["argv"]
    work = real[real.index("python3") :]
    assert sorted(build_nsys_cmd("out", work, **settings)) == sorted(LONG.get(part, part) for part in real)


def test_a_capture_range_does_not_kill_the_program() -> None:
    assert nsys_arguments("out", capture_range="cudaProfilerApi") == [
        *LIGHT,
        *("--capture-range", "cudaProfilerApi", "--capture-range-end", "stop", "-o", "out"),
    ]
    assert "stop-shutdown" in nsys_arguments("out", capture_range="nvtx", capture_range_end="stop-shutdown")
    assert "--capture-range-end" not in nsys_arguments("out", capture_range="none")


def test_nvtx_capture_brings_what_it_needs() -> None:
    options = NsysOptions(nvtx_capture="prefill@LLM")
    assert nsys_arguments("out", options=options)[6:-2] == [
        *("--capture-range", "nvtx", "--capture-range-end", "stop", "--nvtx-capture", "prefill@LLM")
    ]
    assert environment(options) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert environment(NsysOptions()) == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"nvtx_capture": "a", "capture_range": "cudaProfilerApi"},
        {"nvtx_capture": "a", "capture_range": "none"},
        {"capture_range": "nvtx", "trace": "cuda"},
        {"capture_range": "cudaProfilerApi", "trace": ["nvtx"]},
        {"force_overwrite": "maybe"},
        {"cuda_graph_tracing": "node"},
    ],
)
def test_settings_that_would_record_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UserError) as error:
        build_nsys_cmd("out", WORK, **settings)
    assert error.value.fix


def test_without_any_trace_nsys_is_told_so() -> None:
    assert nsys_arguments("out", trace=[])[:2] == ["--trace", "none"]


def test_all_settings_are_known_to_the_real_nsys() -> None:
    argv = nsys_arguments(
        "out",
        trace="cuda,nvtx,osrt",
        sample="process-tree",
        cpuctxsw="process-tree",
        capture_range="nvtx",
        capture_range_end="repeat:3",
        nvtx_capture="decode@*",
        cuda_graph_trace="node",
        force_overwrite=True,
        extra_args=["--cuda-memory-usage", "true"],
    )
    assert validate(argv, KNOWN) == []
    assert argv[-6:] == ["--force-overwrite", "true", "-o", "out", "--cuda-memory-usage", "true"]


hostile = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["-x", "--help", "a b", "'", '"', "$(id)", "a\nb", ";"]
)


@given(
    values=st.dictionaries(st.sampled_from(["sample", "cpuctxsw", "cuda_graph_trace", "capture_range_end"]), hostile),
    name=hostile,
    out=hostile,
    program=hostile.filter(lambda text: not text.startswith("-")),
    arguments=st.lists(st.text(), max_size=4),
)
def test_every_value_is_an_element_of_its_own_after_its_flag(
    values: dict[str, str], name: str, out: str, program: str, arguments: list[str]
) -> None:
    work = [program, *arguments]
    argv = build_nsys_cmd(out, work, nvtx_capture=name, **values)
    assert argv[:2] == ["nsys", "profile"]
    assert argv[-len(work) :] == work
    own = argv[2 : -len(work)]
    expected = {"trace": "cuda,nvtx", "sample": "none", "cpuctxsw": "none"}
    expected |= {"capture_range": "nvtx", "capture_range_end": "stop", "nvtx_capture": name} | values
    wanted = [("--" + key.replace("_", "-"), value) for key, value in expected.items()] + [("-o", out)]
    assert sorted(zip(own[::2], own[1::2], strict=True)) == sorted(wanted)


def test_export_and_summary() -> None:
    assert build_nsys_export_cmd("/opt/nsys", Path("a b.nsys-rep"), "out.sqlite") == [
        *("/opt/nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "-o", "out.sqlite", "a b.nsys-rep")
    ]
    assert build_nsys_stats_cmd("nsys", "a,b/run.sqlite") == [
        *("nsys", "stats", "--quiet", "--report", "cuda_gpu_kern_sum", "--format", "csv", "--output", "-"),
        "a,b/run.sqlite",
    ]


@pytest.mark.skipif(installed("nsys") is None, reason="no nsys on this machine")
def test_the_summary_is_csv_from_its_first_line(unpacked: Callable[[Path], Path]) -> None:
    argv = build_nsys_stats_cmd(str(installed("nsys")), unpacked(recording("nsys-*-train.sqlite")))
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rows = list(csv.DictReader(printed.splitlines()))
    assert rows
    assert {"Name", "Total Time (ns)", "Instances"} <= set(rows[0])
