"""What a person types, gets and sees: verbs, options, exit codes, and answers to wrong input."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from resource import RLIMIT_AS, setrlimit

import jsonschema
import pytest

import llm_perf_opt
from llm_perf_opt.cli.main import _parsed, build_parser, main
from llm_perf_opt.report.schema import build_schema, shipped_schema
from printed import check_printed
from synthetic import make_export

RECORDINGS = Path(__file__).parent / "recordings"
TRAIN = RECORDINGS / "nsys-2025.3.1-h200-train.sqlite.gz"
RANKS = RECORDINGS / "nsys-2025.3.1-h200-ranks.sqlite.gz"


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


# -- report ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_writes_every_format_and_a_valid_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", tmp_path) == 0
    shown = capsys.readouterr()
    assert "recording made on an NVIDIA H200" in shown.err
    assert "LLM@decode" in shown.out
    assert "The GPU sits idle for 91.0 % of the wall time" in shown.out
    assert {"report.json", "report.md", "report.html", "kernels.md", "regions.csv", "kernels.csv"} <= {
        p.name for p in tmp_path.iterdir()
    }
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, shipped_schema())
    folder = next(r["folder"] for r in report["scopes"][-1]["regions"] if r["key"] == "LLM@prefill/layer0/mlp")
    assert {p.name for p in (tmp_path / "regions" / folder).iterdir()} == {
        "kernels.csv",
        "metrics.csv",
        "report.md",
        "sections.txt",
    }


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ["report", str(TRAIN), "--out", "out", "--format", "json"]),
        (0, ["ranges", str(TRAIN)]),
        pytest.param(0, ["plan", "--timeline", str(TRAIN), "--", "true"], marks=pytest.mark.process),
        (0, ["export", str(TRAIN), "--csv", "tables"]),
        (0, ["scrub", str(TRAIN), "--out", "to-share"]),
        (0, ["runs", "list", "."]),
        (2, ["report", "no-such-file"]),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else str(words),
)
def test_what_json_prints_has_a_version(
    code: int, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    at = words.index("--") if "--" in words else len(words)
    assert main([*words[:at], "--json", *words[at:]]) == code
    assert next(iter(json.loads(capsys.readouterr().out))) == "schema_version"


def test_there_is_one_way_to_print_json() -> None:
    sources = Path(llm_perf_opt.__file__).parent
    asked = [path for room in ("cli", "api", "capture") for path in (sources / room).rglob("*.py")]
    assert [path.name for path in asked if "print(json" in path.read_text(encoding="utf-8")] == []


def test_the_shipped_schema_is_the_schema_of_the_model() -> None:
    assert shipped_schema() == build_schema(), "run: python -m llm_perf_opt.report.schema"


@pytest.mark.slow
def test_demo_joins_counters_to_all_launches_and_layers_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", "--out", tmp_path, "--json") == 0
    check_printed("demo", capsys.readouterr().out)
    report = llm_perf_opt.load(tmp_path)
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures
    flops = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    regions = {r.key: r.inclusive.metrics for r in report.scope("aggregate").regions}
    layers = [regions[f"LLM@prefill/layer{i}"][flops].value for i in range(8)]
    assert max(layers) / min(layers) < 1.001
    assert regions["LLM@prefill"][flops].value == pytest.approx(
        sum(layers) + regions["LLM@prefill/lm_head"][flops].value, rel=0.01
    )


def test_report_of_a_timeline_names_its_backward_pass(tmp_path: Path) -> None:
    assert run("report", TRAIN, "--out", tmp_path, "--json") == 0
    backward = {r.key: r for r in llm_perf_opt.load(tmp_path).scope("aggregate").regions}["step/backward"]
    assert (backward.inclusive.kernel_count, backward.adopted_kernels, backward.instances) == (60, 57, 3)


@pytest.mark.parametrize(("mode", "kernels"), [("thread", 3), ("auto", 60), ("process", 60)])
def test_attribution_decides_whose_ranges_count(tmp_path: Path, mode: str, kernels: int) -> None:
    assert run("report", TRAIN, "--out", tmp_path, "--attribution", mode, "--format", "json") == 0
    backward = {r.key: r for r in llm_perf_opt.load(tmp_path).scope("aggregate").regions}["step/backward"]
    assert backward.inclusive.kernel_count == kernels


def test_no_aggregate_removes_only_the_aggregate(tmp_path: Path) -> None:
    run("report", RANKS, "--out", tmp_path / "a", "--format", "json")
    run("report", RANKS, "--out", tmp_path / "b", "--format", "json", "--no-aggregate")
    with_it = [s.scope for s in llm_perf_opt.load(tmp_path / "a").scopes]
    without = [s.scope for s in llm_perf_opt.load(tmp_path / "b").scopes]
    assert with_it == [*without, "aggregate"]
    assert without == ["process:806", "process:807", "device:0"]


def test_only_the_formats_asked_for_are_written(tmp_path: Path) -> None:
    assert run("report", TRAIN, "--out", tmp_path, "--format", "json") == 0
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["report.json"]


def test_kernel_filters_exclude_wins(tmp_path: Path) -> None:
    run(
        "report",
        TRAIN,
        "--out",
        tmp_path,
        "--format",
        "json",
        "--kernel-include",
        "nvjet*",
        "--kernel-exclude",
        "*bias*",
    )
    names = {k.kernel_name for k in llm_perf_opt.load(tmp_path).scope("aggregate").kernels}
    assert names
    assert all(n.startswith("nvjet") and "bias" not in n for n in names)


def test_region_patterns_select_and_reach_down(tmp_path: Path) -> None:
    run("report", TRAIN, "--out", tmp_path, "--format", "json", "--include", "step", "--exclude", "optim*")
    keys = [r.key for r in llm_perf_opt.load(tmp_path).scope("aggregate").regions]
    assert keys == ["step", "step/forward", "step/backward"]


def test_nothing_matched_is_an_answer_not_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", TRAIN, "--out", tmp_path, "--include", "bakward") == 0
    shown = capsys.readouterr().out
    assert "No matching regions" in shown
    why, fix, nearest = shown.splitlines()[:3]
    assert "'bakward' matches none of the 5" in why
    assert "llm-perf ranges" in fix
    assert nearest.strip() == "exists: step/backward"
    report = llm_perf_opt.load(tmp_path)
    assert report.available_ranges[0] == "step/backward"
    assert "No matching regions" in (tmp_path / "report.md").read_text()


def test_strict_turns_nothing_matched_into_exit_6(tmp_path: Path) -> None:
    assert run("report", TRAIN, "--out", tmp_path, "--include", "bakward", "--strict") == 6
    assert (tmp_path / "report.json").exists()
    assert run("ranges", TRAIN, "--include", "bakward", "--strict") == 6


def test_a_run_directory_is_read_and_gets_the_report_inside(tmp_path: Path) -> None:
    (tmp_path / "nsys").mkdir()
    (tmp_path / "nsys" / "run.sqlite").write_bytes(gzip.decompress(TRAIN.read_bytes()))
    (tmp_path / "nsys" / "cmd.txt").write_text("nsys profile …")
    assert run("report", tmp_path, "--json") == 0
    assert (tmp_path / "report.json").exists()
    assert (tmp_path / "ncu" / "regions" / "step__backward" / "kernels.csv").exists()


def test_ranks_become_scopes(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.sqlite.gz").write_bytes(TRAIN.read_bytes())
    out = tmp_path / "out"
    assert (
        run("report", tmp_path / "rank0.sqlite.gz", tmp_path / "rank1.sqlite.gz", "--out", out, "--format", "json") == 0
    )
    report = llm_perf_opt.load(out)
    assert [s.scope for s in report.scopes] == [
        "process:671#1",
        "process:671#2",
        "device:0",
        "rank:0",
        "rank:1",
        "aggregate",
    ]
    one, both = report.scope("rank:1").totals, report.scope("aggregate").totals
    assert (both.kernel_count, both.gpu_time_ns) == (2 * one.kernel_count, 2 * (one.gpu_time_ns or 0))


def test_json_output_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("report", TRAIN, "--out", tmp_path, "--json")
    summary = json.loads(capsys.readouterr().out)
    assert summary["matched"]
    assert "report.html" in summary["files"]


def test_a_recording_without_gpu_work_has_unknown_gpu_times_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """nsys keeps ranges but no kernels of a program that was killed: that is no idle GPU."""
    source = make_export(tmp_path / "run.sqlite", [("decode", 0, 1000)], [])
    assert run("report", source, "--out", tmp_path / "out") == 0
    region = llm_perf_opt.load(tmp_path / "out").scope("aggregate").regions[0]
    assert (region.wall_ns, region.gpu_idle_ns, region.gpu_busy_ns, region.inclusive.gpu_time_ns) == (
        1000,
        None,
        None,
        None,
    )
    shown = capsys.readouterr().out
    assert "has no GPU kernels" in shown
    assert "100.0 %" not in shown


# -- ranges ------------------------------------------------------------------------------------------


def test_ranges_gives_the_expression_that_selects_each(capsys: pytest.CaptureFixture[str]) -> None:
    names = RECORDINGS / "nsys-2025.3.1-h200-names.sqlite.xz"
    assert run("ranges", names, "--json") == 0
    ranges = {r["key"]: r for r in json.loads(capsys.readouterr().out)["ranges"]}
    assert ranges["LLM@plain"]["nvtx_include"] == "LLM@plain/"
    assert ranges[r"LLM\@step"]["nvtx_include"] == r"LLM\@step/"
    assert ranges[r"a\/b"]["nvtx_include"] == r"a\/b/"
    assert ranges["LLM@se (start/end)"]["nvtx_include"] == "LLM@se"
    assert ranges["outer/inner"]["nvtx_include"] == "inner/"


def test_ranges_for_people_can_be_pasted_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ranges", TRAIN) == 0
    assert "backward/" in capsys.readouterr().out


# -- wrong input -------------------------------------------------------------------------------------


def wrong_inputs(folder: Path) -> dict[str, Path]:
    """Inputs nobody should give, each with a name that says what it is."""
    real = gzip.decompress(TRAIN.read_bytes())
    other = folder / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.commit()
    connection.close()
    report = lzma.decompress((RECORDINGS / "ncu-2025.3.1-h200-ranks-two-processes.ncu-rep.xz").read_bytes())
    contents: dict[str, bytes] = {
        "empty.sqlite": b"",
        "empty.ncu-rep": b"",
        "cut.sqlite": real[: len(real) // 2],
        "header-only.sqlite": real[:60],
        "zeros.sqlite": b"SQLite format 3\x00" + bytes(5000),
        "cut.ncu-rep": report[: len(report) // 3],
        "magic-only.ncu-rep": b"NVR\x00",
        "cut.sqlite.gz": TRAIN.read_bytes()[:2000],
        "damaged.sqlite.gz": TRAIN.read_bytes()[:2000] + bytes(500) + TRAIN.read_bytes()[2500:],
        "nothing.gz": gzip.compress(b""),
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "notes.txt": b"just some notes\n",
        "list.csv": b"a,b,c\n1,2,3\n",
        "train.py": b"import torch\n",
        "kern_sum.csv": b"NVTX Range,Style,PID\n",
        "not-a-trace.json": b'{"hello": "world"}',
        "broken.json": b'{"traceEvents": [{"ph": "X"',
        "a-number.json": b"42",
    }
    paths = {name: folder / name for name in contents}
    for name, path in paths.items():
        path.write_bytes(contents[name])
    return paths | {"other.sqlite": other, "a directory": folder / "sub", "missing.sqlite": folder / "missing.sqlite"}


def test_wrong_input_gets_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = wrong_inputs(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, path in inputs.items():
        out = tmp_path / f"out of {name}"
        assert run("report", path, "--out", out) == 2, name
        error = capsys.readouterr().err
        assert path.name in error, name
        assert "Traceback" not in error
        assert len(error.strip().splitlines()) <= 2, name
        assert not out.exists(), f"{name} left a partial report"


def test_errors_speak_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", tmp_path / "missing.sqlite", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert "does not exist" in error["message"]


def test_one_bad_input_among_good_ones_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.ncu-rep"
    bad.write_bytes(b"")
    assert run("report", TRAIN, bad, "--out", tmp_path / "out") == 2
    assert "bad.ncu-rep is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "pdf"], "no report format 'pdf'"),
        (["--format", ","], "No report format"),
        (["--include", "regex:("], "not a valid regular expression"),
        (["--include", ""], "empty region pattern"),
        (["--include", "LLM@"], "names no range"),
        (["--kernel-exclude", "regex:["], "not a valid regular expression"),
    ],
)
def test_bad_options_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run("report", TRAIN, "--out", tmp_path / "out", *arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report"], "INPUT"),
        (["reprot", "x"], "did you mean report?"),
        (["report", "x", "--inlcude", "y"], "did you mean --include?"),
        (["runs", "lst"], "There is no llm-perf runs lst (did you mean list?)."),
        (["--helpp"], "did you mean --help?"),
        (["compare", "x"], "comparing needs two"),
        (["report", "x", "--top", "0"], "not a whole number above 0"),
        (["report", "x", "--attribution", "y"], "invalid choice"),
        (["report", str(TRAIN), "--out", ""], "empty folder name"),
        ([], "VERB"),
    ],
)
def test_bad_command_lines_are_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    if arguments:
        assert main([*arguments, "--json"]) == 2
        assert words in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("typed", "command", "out"),
    [
        (["--out", "x", "python", "a.py", "--steps", "3"], ["python", "a.py", "--steps", "3"], "x"),
        (["-q", "--out=x", "python", "-c", "pass"], ["python", "-c", "pass"], "x"),
        (["--no-meas", "python", "a.py"], ["python", "a.py"], None),
        (["--out", "x", "--", "python", "a.py", "--out", "y"], ["python", "a.py", "--out", "y"], "x"),
    ],
)
def test_words_behind_the_program_are_the_programs(typed: list[str], command: list[str], out: str | None) -> None:
    found = _parsed(["profile", *typed])
    assert (found.command, found.out) == (command, out)


@pytest.mark.parametrize("verb", ["profile", "plan", "measure"])
def test_an_option_of_ours_behind_the_program_is_not_taken_from_it(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--timeout", "3", "python", "a.py", "--out", "weights"]) == 2
    told = capsys.readouterr().err
    assert "--out comes after the program" in told
    assert f"If it is llm-perf's: llm-perf {verb} --timeout 3 --out weights -- python a.py " in told
    assert f"program's: llm-perf {verb} --timeout 3 -- python a.py --out weights" in told


def test_an_option_of_another_verb_is_not_suggested_in_its_own_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(TRAIN), "--out", "x"]) == 2
    told = capsys.readouterr().err
    assert "unrecognized arguments: --out" in told
    assert "did you mean" not in told
    assert "See llm-perf export --help" in told


def test_a_misspelt_option_is_answered_by_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(TRAIN), "--inclde", "x"]) == 2
    told = capsys.readouterr().err
    assert "did you mean --include?" in told
    assert "See llm-perf report --help" in told


def test_a_report_without_regions_names_no_folder_of_regions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(TRAIN), "--include", "nothing*", "--out", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out" / "regions").exists()
    assert "regions/" not in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "seconds"), [("40", 40), ("40s", 40), ("2m", 120), ("1e3", 1000)])
def test_a_time_limit_is_typed_as_any_other_time(typed: str, seconds: float) -> None:
    assert build_parser().parse_args(["measure", "--timeout", typed, "--", "python"]).timeout == seconds


@pytest.mark.process
@pytest.mark.parametrize("words", [["scrub", str(TRAIN)], ["doctor"]])
def test_who_works_in_a_folder_that_was_removed_is_told_so(words: list[str], tmp_path: Path) -> None:
    program = (
        f"import os, sys; os.chdir({str(tmp_path)!r}); os.rmdir({str(tmp_path)!r}); sys.argv[1:] = {words!r}\n{ENTRY}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "The folder you are in was removed." in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_same_recording_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", TRAIN, TRAIN, "--out", tmp_path / "out") == 2
    assert "given twice" in capsys.readouterr().err
    copy = tmp_path / "copy.sqlite.gz"
    copy.write_bytes(TRAIN.read_bytes())
    assert run("report", TRAIN, copy, "--out", tmp_path / "out") == 0
    assert "are the same recording" in capsys.readouterr().out


def test_timelines_of_different_programs_are_pointed_out(tmp_path: Path) -> None:
    assert run("report", TRAIN, RANKS, "--out", tmp_path, "--format", "json") == 0
    assert "UNRELATED_TIMELINES" in {d.code for d in llm_perf_opt.load(tmp_path).diagnostics}


def test_a_kernel_filter_that_lets_nothing_through_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", TRAIN, "--out", tmp_path, "--kernel-include", "nvjetty"]
    assert run(*arguments) == 0
    assert "match none of the" in capsys.readouterr().out
    assert run(*arguments, "--strict") == 6


def test_old_and_new_reports_never_mix(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("report", TRAIN, "--out", out)
    (out / "notes.txt").write_text("mine")
    run("report", TRAIN, "--out", out, "--include", "forward", "--format", "json,csv")
    assert {p.name for p in out.iterdir()} == {
        "report.json",
        "regions.csv",
        "kernels.csv",
        "regions",
        "notes.txt",
        ".llm-perf-files",
    }
    assert [p.name for p in (out / "regions").iterdir()] == ["step__forward"]


def test_whole_ranges_and_graphs_have_no_gpu_time(tmp_path: Path) -> None:
    """Under ncu their duration holds gaps and replay: up to a hundred times the GPU time."""
    for name in ("qwen3-0.95b-app-range", "graph-whole"):
        out = tmp_path / name
        assert run("report", RECORDINGS / f"ncu-2025.3.1-h200-{name}.ncu-rep.xz", "--out", out, "--json") == 0
        region = llm_perf_opt.load(out).scope("aggregate").regions[0]
        assert region.inclusive.gpu_time_ns is None
        assert region.inclusive.kernel_count > 0
        assert region.inclusive.metrics["gpu__time_duration.sum"].value > 0


def test_a_range_that_returns_before_its_work_is_done_is_not_called_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_export(tmp_path / "run.sqlite", [("launch", 0, 100)], [("k", 10, 90, 5000)])
    run("report", source, "--out", tmp_path / "out")
    shown = capsys.readouterr().out
    assert "the ranges end before their GPU work does" in shown
    assert "waits for the host" not in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_tables_never_cut_a_number(width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rich.console import Console

    from llm_perf_opt.report.terminal import region_table
    from llm_perf_opt.report.view import view_of

    run("report", TRAIN, "--out", tmp_path, "--format", "json", "--json")
    view = view_of(llm_perf_opt.load(tmp_path))
    console = Console(width=width, record=True)
    with console.capture() as shown:
        console.print(region_table(view, width))
    text = shown.get()
    assert "…" not in text
    assert "backward" in text
    assert "3.26 ms" in text


def test_ranges_of_autograd_need_the_process_scope(capsys: pytest.CaptureFixture[str]) -> None:
    run("ranges", TRAIN, "--json")
    options = {r["key"]: r["ncu_options"] for r in json.loads(capsys.readouterr().out)["ranges"]}
    assert options["step/backward"] == ["--nvtx-include", "backward/", "--nvtx-push-pop-scope", "process"]
    assert options["step/forward"] == ["--nvtx-include", "forward/"]


def test_annotations_of_the_pytorch_profiler_have_no_ncu_expression(capsys: pytest.CaptureFixture[str]) -> None:
    run("ranges", RECORDINGS / "kineto-torch2.11-h200-2layers.json.gz")
    assert "ncu cannot select them" in capsys.readouterr().out


def test_an_output_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("report", TRAIN, "--out", tmp_path / "file") == 2
    assert "is a file" in capsys.readouterr().err
    assert run("report", TRAIN, "--out", tmp_path / "file" / "below") == 2
    assert "--out" in capsys.readouterr().err
    assert run("export", TRAIN, "--csv", tmp_path / "file" / "below") == 2
    assert "--out" not in capsys.readouterr().err  # an option it does not have


def test_nsys_rep_without_nsys_says_where_to_export_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_PERF_NSYS", str(tmp_path / "no-such-nsys"))
    recording = tmp_path / "run.nsys-rep"
    recording.write_bytes(b"NSYS" + bytes(1000))
    assert run("report", recording) == 3
    assert "nsys export --type sqlite" in capsys.readouterr().err


def fake_nsys(tmp_path: Path, body: str) -> Path:
    program = tmp_path / "nsys"
    program.write_text(f"#!{sys.executable}\nimport gzip, pathlib, sys\n{body}\n")
    program.chmod(0o755)
    return program


@pytest.mark.process
def test_nsys_rep_is_exported_by_the_nsys_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What `nsys export` does: reads the last argument, writes SQLite to the one after -o.
    body = (
        "out = sys.argv[sys.argv.index('-o') + 1]\n"
        f"pathlib.Path(out).write_bytes(gzip.decompress(pathlib.Path({str(TRAIN)!r}).read_bytes()))"
    )
    monkeypatch.setenv("LLM_PERF_NSYS", str(fake_nsys(tmp_path, body)))
    recording = tmp_path / "run.nsys-rep"
    recording.write_bytes(b"NSYS" + bytes(1000))
    assert run("report", recording, "--out", tmp_path / "out", "--format", "json") == 0
    assert llm_perf_opt.load(tmp_path / "out").scope("aggregate").totals.kernel_count == 220


@pytest.mark.process
def test_nsys_that_exits_0_and_writes_nothing_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_PERF_NSYS", str(fake_nsys(tmp_path, "")))
    recording = tmp_path / "run.nsys-rep"
    recording.write_bytes(b"NSYS" + bytes(1000))
    assert run("report", recording, "--out", tmp_path / "out") == 2
    assert "wrote nothing" in capsys.readouterr().err


def test_an_archive_made_to_fill_the_disk_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = tmp_path / "bomb.sqlite.xz"
    with lzma.open(bomb, "wb", preset=0) as out:
        for _ in range(100):
            out.write(bytes(1 << 20))
    assert run("report", bomb, "--out", tmp_path / "out") == 2
    assert "which no recording does" in capsys.readouterr().err


def test_the_folder_of_a_loaded_report_can_be_wrong_too(tmp_path: Path) -> None:
    with pytest.raises(llm_perf_opt.errors.UnreadableInput, match="without recordings"):
        llm_perf_opt.load(tmp_path)
    (tmp_path / "report.json").write_text('{"scopes": 3}')
    with pytest.raises(llm_perf_opt.errors.UnreadableInput, match="not a report"):
        llm_perf_opt.load(tmp_path)


# -- the console script ------------------------------------------------------------------------------


@pytest.mark.process
def test_help_needs_nothing_heavy() -> None:
    code = "import sys; from llm_perf_opt.cli.main import build_parser; build_parser().format_help(); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("numpy", "rich", "jinja2", "cattrs", "ncu_report", "torch"):
        assert f"'{heavy}'" not in loaded


@pytest.mark.process
def test_reading_needs_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys; from llm_perf_opt.cli.main import main;"
        f"assert main(['report', {str(TRAIN)!r}, '--out', {str(tmp_path)!r}, '--json']) == 0;"
        "assert not {'torch', 'transformers', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code"), [(["ranges"], 0), (["report", "--out", "out", "--include", "zzz", "--strict"], 6)]
)
def test_a_closed_pipe_changes_nothing_but_what_is_printed(words: list[str], code: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    verb, *options = words
    done = subprocess.run(
        [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()", verb, str(TRAIN), *options],
        cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.process
def test_locale_c_and_strange_paths(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "größe #1?%20"
    folder.mkdir(parents=True)
    source = make_export(folder / "run ü.sqlite", [("räng", 0, 100)], [("k", 10, 20, 30)])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from llm_perf_opt.cli.main import entry; entry()",
            "report",
            str(source),
            "--out",
            str(folder / "out"),
        ],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert llm_perf_opt.load(folder / "out").scope("aggregate").regions[0].name == "räng"


@pytest.mark.process
@pytest.mark.parametrize(("closing", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), (">/dev/full", 2)])
def test_a_stream_that_is_closed_or_full_keeps_nothing_from_being_done(tmp_path: Path, closing: str, code: int) -> None:
    ended = subprocess.run(
        [
            "sh",
            "-c",
            f'"{sys.executable}" -c "{ENTRY}" report "{TRAIN}" --out "{tmp_path}/out" --format json {closing}',
        ],
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in ended.stderr + ended.stdout
    assert ended.returncode == code
    assert (tmp_path / "out" / "report.json").exists()


@pytest.mark.process
@pytest.mark.parametrize("closing", ["2>/dev/full", "2>&-"])
def test_a_mistake_has_its_exit_code_even_where_nothing_can_be_said(tmp_path: Path, closing: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{ENTRY}" report "{tmp_path}/nothing" {closing}'], capture_output=True
    )
    assert ended.returncode == 2


ENTRY = "from llm_perf_opt.cli.entry import entry; entry()"


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits that hold")
@pytest.mark.parametrize("words", [["report", "x.sqlite"], ["profile", "--", "true"], ["runs", "list"]])
def test_a_machine_without_memory_is_told_and_not_a_traceback(words: list[str], tmp_path: Path) -> None:
    """Libraries that cannot be loaded and threads that cannot be started come as errors of no kind of their own."""
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0")
    # Not between 137 and 150: there the threads of OpenBLAS start, and it crashes or hangs at its next allocation.
    for megabytes in (100, 130, 200, 300, 400):
        limit = partial(setrlimit, RLIMIT_AS, (megabytes << 20, megabytes << 20))
        command = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
        assert "Traceback" not in ended.stderr, (megabytes, ended.stderr)
        # 1, 130: OpenBLAS ends the process by itself, or interrupts it, in words of its own.
        assert ended.returncode in (0, 1, 2, 3, 130), megabytes
        assert ended.stderr or not ended.returncode
