"""`show`, `open`, the end of every verb, groups of options, and a program without `--`."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
from attrs import evolve

from conftest import recording, report
from llm_perf_opt.agents.questions import Questions
from llm_perf_opt.agents.workspace import Workspace
from llm_perf_opt.capture.preparation import check_program
from llm_perf_opt.cli.main import build_parser, main
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UserError
from llm_perf_opt.options.declared import OPTIONS
from llm_perf_opt.options.help_groups import GROUPS, grouped_flags
from llm_perf_opt.regions.names import UNSAFE
from llm_perf_opt.report.closing import after_failure, next_of
from llm_perf_opt.report.headline import read_headline
from llm_perf_opt.report.write import write_report
from llm_perf_opt.runners.requests import stage1_command
from test_hostile_names import hostile_export

TRAIN = recording("nsys-*-train.sqlite")
WAITS = recording("lines-*-waits.sqlite")
WARM = recording("nsys-*-decoder-8layers-warm.sqlite")
COLD = recording("nsys-*-decoder-8layers.sqlite")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# -- show --------------------------------------------------------------------------------------------


def test_one_region_is_shown_with_its_times_causes_lines_and_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(WAITS), "step", "--top", "3"]) == 0
    shown = capsys.readouterr().out
    assert "median 84.1 ms" in shown
    assert "5 steady of 6 instances" in shown
    assert "Host-bound." in shown
    assert "lines.py:163" in shown
    assert "fix 1" in shown
    assert "reduce_kernel<sum_functor>" in shown
    assert "--top 34" in shown  # as many lines as there are


def test_without_a_name_it_is_the_stage_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(WARM), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["region"]["key"] == "LLM@decode"
    assert len(found["kernels"]) == 10


def test_a_name_that_several_regions_have_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(WARM), "mlp"]) == 2
    shown = capsys.readouterr().err
    assert "regions are called 'mlp'" in shown
    assert "LLM@prefill/layer0/mlp" in shown
    assert main(["show", str(WARM), "decode_stp"]) == 2
    assert "LLM@decode/decode_step" in capsys.readouterr().err


def test_hostile_names_reach_neither_terminal_nor_agent(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = hostile_export(desk / "r.sqlite")
    asked = Questions(Workspace(desk))
    rows = asked.regions("r.sqlite", limit=100)["rows"]
    assert len(rows) > 20
    for row in rows:
        if not row["key"].endswith("…"):  # one that was cut is named by nobody
            assert main(["show", "--top", "3", "--", str(export), row["key"]]) == 0
            asked.evidence("r.sqlite", row["id"])
    shown = capsys.readouterr().out + json.dumps(rows, ensure_ascii=False)
    assert not UNSAFE.search(shown.replace("\n", ""))


# -- open --------------------------------------------------------------------------------------------


def test_without_a_browser_the_path_of_the_page_is_printed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "run").mkdir()
    (desk / "run" / "report.html").write_text("<!doctype html>")
    assert main(["open", "run"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == str(desk / "run" / "report.html")
    assert "no browser" in shown.err


@pytest.mark.process
def test_the_browser_gets_the_page(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk / "run").mkdir()
    (desk / "run" / "report.html").write_text("<!doctype html>")
    browser = desk / "browser"
    browser.write_text(f"#!{sys.executable}\nimport sys\nopen({str(desk / 'asked')!r}, 'w').write(sys.argv[1])\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert main(["open", "run"]) == 0
    assert (desk / "asked").read_text() == (desk / "run" / "report.html").as_uri()


def test_what_has_no_page_says_how_to_get_one(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "run").mkdir()
    assert main(["open", "run"]) == 2
    assert "llm-perf report run" in capsys.readouterr().err
    assert main(["open"]) == 2
    assert "There are no runs" in capsys.readouterr().err
    (desk / "run" / "report.html").touch()
    assert main(["open"]) == 2
    assert capsys.readouterr().err.strip().endswith("llm-perf open run")  # such as `llm-perf demo` leaves


def test_the_page_of_a_trial_comes_before_that_of_the_program_as_it_is(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "run").mkdir()
    for name in ("report.html", "try.html"):
        (desk / "run" / name).touch()
    assert main(["open", "run", "--quiet"]) == 0
    assert capsys.readouterr().out.strip().endswith("try.html")


def test_a_folder_of_recordings_names_the_newest(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "some recordings").mkdir()
    (desk / "some recordings" / "run.sqlite.xz").write_bytes(WARM.read_bytes())
    assert main(["report", "some recordings"]) == 2
    assert "the newest: 'some recordings/run.sqlite.xz'" in capsys.readouterr().err
    (desk / "empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "Give a run directory" in capsys.readouterr().err


def test_what_ncu_printed_says_how_to_get_a_recording(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "ncu.log").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert main(["report", "ncu.log"]) == 2
    assert "llm-perf doctor checks" in capsys.readouterr().err
    (desk / "ncu.log").write_text('==PROF== Profiling "gemm" - 0: 0%....100% - 3 passes\n  gemm (1,1,1)x(32,1,1)\n')
    assert main(["report", "ncu.log"]) == 2
    assert "-o NAME" in capsys.readouterr().err


# -- how verbs end -----------------------------------------------------------------------------------


def last_lines(text: str) -> list[str]:
    return [line.split(":")[0] for line in text.strip().splitlines()[-3:]]


def test_a_report_and_a_comparison_end_with_the_same_three_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(WARM), "--out", "out", "--format", "json,html"]) == 0
    shown = capsys.readouterr().out
    assert last_lines(shown) == ["Result", "Page", "Next"]
    assert "Result: LLM@decode is launch-bound. Capture the step in a CUDA graph" in shown
    assert "Next: llm-perf show out LLM@decode" in shown
    assert main(["compare", str(COLD), str(WARM)]) == 0
    shown = capsys.readouterr().out
    assert last_lines(shown) == ["Result", "Page", "Next"]
    assert "compare.html" in shown
    assert main(["compare", str(WARM), str(COLD)]) == 0
    assert "Next: llm-perf show" in capsys.readouterr().out


@pytest.mark.process
def test_verbs_without_a_page_end_with_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrub", str(TRAIN), "--out", "copy"]) == 0
    *_, result, following = capsys.readouterr().out.strip().splitlines()
    assert (result, following[:31]) == ("Result: Written to copy", "Next: llm-perf report copy/nsys")
    assert main(following.removeprefix("Next: llm-perf ").split()) == 0
    assert main(["plan", "--timeline", str(WARM), "--", "python", "a.py"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("Next: llm-perf profile -- CMD")


def test_what_is_typed_next_works(capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(TRAIN), "--out", "out", "--format", "json"])
    following = capsys.readouterr().out.strip().splitlines()[-1].removeprefix("Next: llm-perf ")
    assert main(following.split()) == 0


def test_what_comes_after_a_server_keeps_its_load() -> None:
    serving = {"load": 24, "concurrency": 8, "url": "http://127.0.0.1:8123", "load_command": None, "keep": False}
    ran = {"workload": ["python", "serve.py"], "settings": serving}
    fixable = evolve(report(WARM), environment={"run": ran})
    assert fixable.answer.fixes
    assert next_of(fixable, Path("run")) == "change the program, run it again, then: llm-perf compare run NEW_RUN"
    scope = fixable.main_scope
    assert scope is not None
    timed = evolve(
        fixable, scopes=[evolve(scope, totals=evolve(scope.totals, gpu_time_ns=None))]
    )  # as `measure` leaves
    assert (
        next_of(timed, Path("run"))
        == (
            "llm-perf profile --load 24 --url http://127.0.0.1:8123 -- python serve.py"  # what is as by default is not typed
        )
    )
    without = {"run": ran | {"gpus_before": [], "gpus_after": []}}  # the machine has no GPU: it would not work there
    told = next_of(evolve(timed, environment=without), Path("run"))
    assert told.startswith("on a machine with an NVIDIA GPU: llm-perf profile --load 24")


def test_a_run_that_failed_leads_to_its_output_or_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "measure").mkdir()
    (tmp_path / "measure" / "workload.log").touch()
    ours, theirs = (Diagnosis(code, "error", "It failed.", "") for code in ("DISK_FULL", "WORKLOAD_FAILED"))
    profile, measure = ["llm-perf", "profile", "--", "a.py"], ["llm-perf", "measure", "--", "a.py"]
    assert after_failure([ours], profile, tmp_path) == f"llm-perf profile --resume {tmp_path}"
    unmarked = Diagnosis("NOTHING_TIMED", "error", "It opened no range.", "Add: --annotate stages")
    assert after_failure([unmarked], measure, tmp_path) == "Add: --annotate stages"
    for diagnostics, command in (([theirs], profile), ([ours], measure)):
        assert after_failure(diagnostics, command, tmp_path) == f"less {tmp_path}/measure/workload.log"


@pytest.mark.process
def test_what_failed_is_fixed_before_it_is_profiled(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import llm_perf_opt\nwith llm_perf_opt.region('decode'): pass\nraise SystemExit(3)"
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", program]) == 4
    assert "Do first: Fix the program first" in capsys.readouterr().out
    assert json.loads((desk / "run" / "report.json").read_text())["answer"]["do_first"].startswith("Fix the program")


@pytest.mark.process
def test_who_uses_no_pytorch_is_not_told_to_have_its_models_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", "pass"]) == 5
    shown = capsys.readouterr().out
    assert "does not seem to use PyTorch" in shown
    assert "--annotate" not in shown
    assert "Next: Mark the parts that matter with nvtx.annotate or llm_perf_opt.region." in shown
    assert main(["report", "run"]) == 5  # such a run cannot be resumed
    told = capsys.readouterr().err
    assert "Mark the parts" in told
    assert "--resume" not in told


@pytest.mark.process
def test_a_run_that_left_nothing_ends_with_the_three_sentences(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", "raise SystemExit('no')"]) == 4
    result, page, following = capsys.readouterr().out.strip().splitlines()[-3:]
    assert result.startswith("Result: The program itself failed")
    assert (page, following) == ("Page: none was written", "Next: less run/measure/workload.log")


def test_nobody_is_asked_to_type_how_a_runner_starts_its_model(tmp_path: Path) -> None:
    """It names a file that is gone when the run ends."""
    found = copy.deepcopy(report(TRAIN))
    (tmp_path / "report.json").touch()
    found.environment["run"] = {"workload": ["python", "train.py"]}
    assert next_of(found, tmp_path) == "llm-perf try -- python train.py"
    found.environment["run"]["settings"] = {"annotate": "stages"}
    assert next_of(found, tmp_path) == "llm-perf try --annotate stages -- python train.py"
    started = [str(word) for word in stage1_command(tmp_path / "config.yaml", tmp_path, tmp_path / "workload")]
    found.environment["run"] = {"workload": [*started, "--profiled"]}
    assert next_of(found, tmp_path).startswith("llm-perf show ")


# -- the result of a run, from the beginning of its report -----------------------------------------------


def test_a_headline_is_read_without_the_report(desk: Path) -> None:
    found = report("nsys-*-train.sqlite")
    write_report(found, desk, ["json"])
    assert read_headline(desk)["where"] == found.answer.where
    (desk / "report.json").write_bytes((desk / "report.json").read_bytes()[:5000])
    assert read_headline(desk)["stage"] == found.answer.stage


@pytest.mark.parametrize("text", ["", "{}", '{"answer": {"where": "\\ud8"', '{"answer": {"where": ""}}', "\0" * 100])
def test_a_damaged_report_has_no_headline(text: str, desk: Path) -> None:
    (desk / "report.json").write_text(text)
    assert read_headline(desk) == {}


# -- options and the program ---------------------------------------------------------------------------


def test_options_are_grouped_and_no_group_names_one_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert grouped_flags() <= {option.flag for option in OPTIONS}
    with pytest.raises(SystemExit):
        build_parser("profile").parse_args(["profile", "--help"])
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    assert shown.index("--out DIR  ") < places[1]
    assert shown.index("\n  --replay-mode ") > places[3]


def test_the_few_options_of_runs_stand_together_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """`--keep` of a server is another option than that of `prune`."""
    with pytest.raises(SystemExit):
        main(["runs", "prune", "--help"])
    shown = capsys.readouterr().out
    assert not any(f"\n{group}:" in shown for group in GROUPS)
    assert "examples:\n  llm-perf runs prune --keep 10 --max-size 2GB\n" in shown


@pytest.mark.process
def test_a_forgotten_separator_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["measure", "--out", "run", "true"])
    assert "llm-perf: -- is missing: true and everything after it are taken as the program." in capsys.readouterr().err
    main(["measure", "--out", "run2", "--quiet", "true"])
    assert "is missing" not in capsys.readouterr().err
    main(["measure", "--out", "run3", "--", "true"])
    assert "is missing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (["N=1", "true", "a b"], "-- env N=1 true 'a b'"),
        (["model.py", "--tiny"], "-- python model.py --tiny"),
        (["model.bin"], "chmod +x model.bin"),
        (["true --tiny"], "-- true --tiny (a line that needs a shell: -- sh -c 'true --tiny')"),
        (["no such thing"], "Check the spelling"),
        (["folder/"], "It is a folder: name a program in it, as in: -- python folder/main.py"),
        (["notebook.ipynb"], "%%llm_perf"),
        (["python", "notebook.ipynb"], "jupyter nbconvert --to script"),
    ],
)
def test_a_command_that_cannot_be_started_is_answered_with_one_that_can(command: list[str], instead: str) -> None:
    for name in ("model.py", "model.bin"):
        Path(name).write_text("")
    Path("folder").mkdir()
    with pytest.raises(UserError) as refused:
        check_program(command)
    assert instead in refused.value.fix


@pytest.mark.process
def test_a_program_that_asks_for_input_is_told_how_it_gets_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", "input()"]) == 4
    told = capsys.readouterr().err
    assert "EOFError" in told
    assert "Let it read from a file" in told
    assert "Fix the program first" not in told


def test_a_program_in_the_place_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", "train.sh"]) == 2
    assert "llm-perf profile -- cat" in capsys.readouterr().err
