"""The Hydra applications: what is typed reaches the library, and what is mistyped gets a useful answer."""

from __future__ import annotations

import json
import logging
import lzma
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from omegaconf import OmegaConf

import llm_perf_opt
from conftest import RECORDINGS
from fake_tools import DETAILS
from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.options import KEYS, default_config
from llm_perf_opt.rundir.inventory import take_inventory
from llm_perf_opt.runners import app, deep_profile_runner, llm_profile_runner
from llm_perf_opt.runners.overrides import normalised, options_of
from llm_perf_opt.runners.requests import deep_request

PYTHON = sys.executable


def deep(*words: str) -> subprocess.CompletedProcess[str]:
    """deep_profile_runner on a program that does nothing; the fakes leave real recordings."""
    program = f"pipeline.workload.command=[{PYTHON},-c,pass]"
    return subprocess.run(
        [PYTHON, "-m", "llm_perf_opt.runners.deep_profile_runner", program, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )


Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """As `deep`, in this process: what a fresh Python, Hydra and the rest take to import is most of a short run."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # a run sets it
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def start(*words: str, job: app.Job = deep_profile_runner.job) -> subprocess.CompletedProcess[str]:
        argv = [f"pipeline.workload.command=[{PYTHON},-c,pass]", *words]
        code = app.start(job, argv)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(argv, code, said.out, said.err)

    yield start
    root.handlers[:] = handlers  # Hydra leaves its own
    root.setLevel(level)


def runs() -> list[Path]:
    return sorted(p.parent for p in Path("tmp/profile-output").rglob("manifest.json"))


def commands(run: Path) -> str:
    return (run / "ncu" / "cmd.txt").read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [
                "pipeline.ncu.ncu_cli.replay_mode=range",
                "pipeline.ncu.ncu_cli.nvtx.include=LLM@*",
                "pipeline.ncu.ncu_cli.sections=[SpeedOfLight,MemoryWorkloadAnalysis,Occupancy,SchedulerStats]",
            ],
            [
                "--replay-mode range",
                "--section SpeedOfLight --section MemoryWorkloadAnalysis",
                "--nvtx-include LLM@prefill/ --nvtx-include LLM@decode/",
            ],
        ),
        (
            ["pipeline.ncu.ncu_cli.replay_mode=app-range", "pipeline.ncu.ncu_cli.nvtx.include=prefill*"],
            ["--replay-mode app-range", "--nvtx-include LLM@prefill/"],
        ),
        (
            ["pipeline.ncu.ncu_cli.replay_mode=kernel", "pipeline.ncu.ncu_cli.nvtx.include=decode*"],
            ["--replay-mode kernel", "--nvtx-include LLM@decode/", "--filter-mode per-launch-config"],
        ),
        (
            [
                "nvtx.include=decode*",
                "pipeline.ncu.ncu_cli.kernel_name=regex:.*nvjet.*",
                "pipeline.ncu.ncu_cli.kernel_name_base=demangled",
                "pipeline.ncu.ncu_cli.sections=[SpeedOfLight,MemoryWorkloadAnalysis,Occupancy]",
            ],
            ["--kernel-name 'regex:.*nvjet.*' --kernel-name-base demangled", "--section Occupancy"],
        ),
    ],
)
@pytest.mark.usefixtures("json_alone")
def test_the_commands_of_the_contract_reach_ncu(tools: Path, here: Here, words: list[str], expected: list[str]) -> None:
    done = here("pipeline.ncu.enable=true", *words)
    assert done.returncode == 0, done.stderr
    (run,) = runs()
    for part in expected:
        assert part in commands(run)
    assert llm_perf_opt.load(run).scope("aggregate").regions


@pytest.mark.process
def test_jobs_of_a_sweep_can_run_at_once(tools: Path) -> None:
    done = deep("-m", "run.mode=light", "run.top_n_kernels=5,6", "hydra/launcher=joblib")
    assert done.returncode == 0, done.stderr
    assert [yaml.safe_load((run / "config.yaml").read_text())["run"]["top_n_kernels"] for run in runs()] == [5, 6]
    assert all((run / "report.html").exists() for run in runs())


@pytest.mark.process
def test_a_sweep_has_a_directory_and_reports_for_every_job(tools: Path) -> None:
    done = deep("-m", "run.mode=deep,light")
    assert done.returncode == 0, done.stderr
    first, second = runs()
    assert first.parent == second.parent
    assert [r.name for r in (first, second)] == ["0", "1"]
    for run in (first, second):
        assert (run / "nsys" / "run.nsys-rep").exists()
        assert (run / "report.html").exists()
    assert list((first / "ncu").glob("run*.ncu-rep"))
    assert not list((second / "ncu").glob("*.ncu-rep"))
    assert yaml.safe_load((second / "config.yaml").read_text())["run"]["mode"] == "light"
    assert (first.parent / "multirun.yaml").exists()
    assert take_inventory(first.parent).others == take_inventory(first.parent.parent).others == []


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_advice_names_keys_of_the_configuration(tools: Path, here: Here) -> None:
    program = f"pipeline.workload.command=[{PYTHON},-c,'import time; time.sleep(60)']"
    done = here(program, "pipeline.nsys.timeout_s=1", "run.mode=light")
    assert done.returncode == 124
    assert "pipeline.nsys.timeout_s" in done.stderr
    assert "--timeout" not in done.stderr + done.stdout
    (run,) = runs()
    assert "--timeout" not in (run / "manifest.json").read_text()
    Path("mine").mkdir()
    Path("mine/precious").touch()
    refused = here("hydra.run.dir=mine")
    assert refused.returncode == 2
    assert "--out" not in refused.stderr
    assert "hydra.run.dir" in refused.stderr


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_a_failed_job_of_a_sweep_does_not_stop_the_others(tools: Path, here: Here) -> None:
    done = here("-m", "pipeline.ncu.sample=every,first")
    assert done.returncode == 2
    assert "every:N" in done.stderr
    assert len(runs()) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("pipeline.nuc.enable=true", "Did you mean pipeline.ncu.enable"),
        ("pipeline.ncu.ncu_cli.section=[Occupancy]", "Did you mean pipeline.ncu.ncu_cli.sections"),
        ("model=tiny_lm", "Did you mean tiny_llm"),
        ("device", "KEY=VALUE"),
        ("pipeline.ncu.enable=maybe", "true or false"),
        ("run.mode=deeep", "Allowed: light, deep"),
        ("pipeline.ncu.ncu_cli.replay_mode=ranges", "app-range"),
        ("pipeline.ncu.ncu_cli.sections=[SpeedOfLite]", "SpeedOfLight"),
        ("pipeline.nsys.max_size=big", "as in 2GB"),
        ("pipeline.ncu.ncu_cli.nvtx.include='regex:('", "not a valid regular expression"),
        ("run=deep", "There is no key 'run'"),
        ("pipeline.ncu.ncu_cli.nvtx.include=[LLM@prefill,LLM@decode", "cannot be read"),
        ("~pipeline.ncu.strategy", "would remove a key"),
        ("pipeline.ncu.launches=0", "above 0"),
        ("hydra.run.dir=/proc/nowhere", "Choose another with hydra.run.dir"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_launched(tools: Path, here: Here, word: str, answer: str) -> None:
    done = here(word)
    assert done.returncode == 2, done.stderr
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
    assert not runs()
    assert not Path("tmp").exists() or not list(Path("tmp/profile-output").iterdir())


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("device=tpu", "device=cpu"),
        ("model.dtype=int7", "model.dtype='int7' is unknown"),
        ("inputs.manifest=/nowhere.yaml", "named by inputs.manifest, does not exist"),
        ("model.name=tiny_lm", "There is no model called 'tiny_lm'. Did you mean tiny_llm?"),
        ("model=hf_causal_lm model.path=/nowhere", "model.path=/nowhere is not a model folder"),
        ("pipeline.torch_profiler.activities=[gpu]", "Did you mean cpu?"),
    ],
)
@pytest.mark.parametrize("job", [llm_profile_runner.job, deep_profile_runner.job])
@pytest.mark.torch
def test_a_value_that_cannot_be_leaves_no_run_directory(
    tmp_path: Path, here: Here, job: app.Job, word: str, answer: str
) -> None:
    pytest.importorskip("transformers", reason="stage 1 runs a model")
    done = here(
        "pipeline.workload.command=[]", "device=cpu", f"hydra.run.dir={tmp_path / 'run'}", *word.split(), job=job
    )
    assert done.returncode == 2
    assert answer in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_a_mistake_is_the_exit_code_of_the_program(tools: Path) -> None:
    done = deep("pipeline.nuc.enable=true")
    assert done.returncode == 2, done.stderr
    assert "Did you mean pipeline.ncu.enable" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_option_of_the_tools_has_a_key_with_the_same_default() -> None:
    options = attrs.asdict(NcuOptions())
    del options["nvtx"]  # for callers from Python: without ranges a run has no regions
    for name in ("nvtx_include", "nvtx_exclude", "nvtx_push_pop_scope"):
        options[name.replace("_", ".", 1)] = options.pop(name)
    for name, default in options.items():
        assert KEYS[f"pipeline.ncu.ncu_cli.{name}"].default == (
            list(default) if isinstance(default, tuple) else default
        )
    for name, default in attrs.asdict(NsysOptions(cuda_graph_trace="node")).items():
        # Those of the metrics follow from `traffic_hz`, those of Python from `lines`.
        follows = name.startswith(("gpu_metrics", "python_sampling"))
        if name not in ("force_overwrite", "session_new") and not follows:
            assert KEYS[f"pipeline.nsys.{name}"].default == (list(default) if isinstance(default, tuple) else default)


def test_nothing_of_the_configuration_is_lost_on_the_way_to_the_workload(tmp_path: Path) -> None:
    from llm_perf_opt.runners.app import checked
    from llm_perf_opt.runners.stage1_settings import stage1_settings

    config = default_config()
    config["model"]["config"] = {"num_hidden_layers": 7}
    config["infer"]["max_new_tokens"] = 5
    config["device"] = "cpu"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = deep_request(config, tmp_path / "run", file, tmp_path).command
    assert command[1:3] == ["-m", "llm_perf_opt.runners.llm_profile_runner"]
    assert command[command.index("--resolved") + 1] == str(file)
    # exactly what the workload does with it
    settings = stage1_settings(checked(OmegaConf.load(file)), folder=tmp_path, profiled="--profiled" in command)
    assert dict(settings.model.config) == {"num_hidden_layers": 7}
    assert settings.infer.max_new_tokens == 5
    assert settings.model.device == "cpu"
    assert not settings.torch_profiler.enable


def test_a_number_that_python_refuses_to_read_is_told() -> None:
    with pytest.raises(UserError, match="more than a thousand digits"):
        normalised([f"repeats={'1' * 5000}"])


def test_short_and_long_spellings_are_one_key() -> None:
    assert normalised(["+run.mode=deep"]) == ["run.mode=deep"]
    assert normalised(["profiling.activities=[cpu,cuda]"]) == ["pipeline.torch_profiler.activities=[cpu,cuda]"]
    preset = "profiling/torch@pipeline.torch_profiler=torch-profiler.min"
    assert normalised(["profiling=@profiling/torch/torch-profiler.min"]) == [preset]
    assert normalised(["model.config.num_hidden_layers=4"]) == ["++model.config.num_hidden_layers=4"]
    assert normalised(["+model.config={preset: tiny}"]) == ["++model.config={preset: tiny}"]
    assert normalised(["--cfg", "job"]) == ["--cfg", "job"]
    sections = "pipeline.ncu.ncu_cli.sections"
    assert normalised([f"{sections}=SpeedOfLight,Occupancy"]) == [f"{sections}=[SpeedOfLight,Occupancy]"]
    assert normalised(["-m", "run.mode=deep,light"]) == ["-m", "run.mode=deep,light"]
    kernel = "pipeline.ncu.ncu_cli.kernel_name"
    assert normalised([f"{kernel}=void f<int, 4>(float*)"]) == [f"{kernel}='void f<int, 4>(float*)'"]


@pytest.mark.parametrize("group", ["model", "profiling/ncu", "profiling/torch"])
def test_presets_are_those_of_the_contract(group: str) -> None:
    expected = {
        "model": {"deepseek_ocr", "hf_causal_lm", "tiny_llm", "dummy_shallow_resnet"},
        "profiling/ncu": {"default", "high", "quick", "standard", "comprehensive", "ncu.default", "ncu.high"},
        "profiling/torch": {"torch-profiler.min", "torch-profiler.default", "torch-profiler.max"},
    }
    assert set(options_of(group)) == expected[group]


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_a_preset_under_its_other_name_is_the_same(tools: Path, here: Here) -> None:
    done = here("profiling/ncu@pipeline.ncu=ncu.high")
    assert done.returncode == 0, done.stderr
    assert "--section WarpStateStats" in commands(runs()[0])


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("quick", {"set": "basic", "launch_count": 5}),
        ("standard", {"set": "roofline", "launch_count": 20, "kernel_name_base": "demangled"}),
        ("comprehensive", {"set": "full", "launch_count": 100, "replay_mode": "range"}),
    ],
)
def test_presets_have_the_contents_their_users_know(tmp_path: Path, preset: str, expected: dict[str, object]) -> None:
    asked: list[NcuOptions] = []

    def job(config: dict[str, Any], run: Path) -> int:
        asked.append(deep_request(config, run, tmp_path / "config.yaml", tmp_path).counters.options)
        return 0

    assert app.start(job, [f"profiling/ncu@pipeline.ncu={preset}", f"hydra.run.dir={tmp_path}/run"]) == 0
    named = attrs.evolve(asked[0], kernel_name=None)  # the next test but one looks at that
    assert named == NcuOptions(**expected)


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_comprehensive_ends_in_kernel_replay_where_ranges_cannot_have_its_metrics(
    tools: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", "range=ncu-sass-in-range")
    done = here("profiling/ncu@pipeline.ncu=comprehensive")
    assert done.returncode == 0, done.stderr
    (run,) = runs()
    modes = [
        line.split("--replay-mode ")[1].split()[0] for line in commands(run).splitlines() if "--replay-mode" in line
    ]
    assert modes == ["range", "kernel"]
    assert commands(run).count("--set full") == commands(run).count("--launch-count 100") == 2
    assert "REPLAY_FELL_BACK" in {d.code for d in llm_perf_opt.load(run).diagnostics}


def test_standard_takes_products_and_convolutions() -> None:
    """Its pattern, which ncu has to understand, against what reports call such kernels; helpers of theirs are left out."""
    preset = Path(llm_perf_opt.__file__).parent / "conf" / "profiling" / "ncu" / "standard.yaml"
    pattern = re.compile(yaml.safe_load(preset.read_text())["ncu_cli"]["kernel_name"].removeprefix("regex:"))
    recordings = ("nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz", "profile-2025.3.1-h200-ocr.sqlite.xz")
    names = {k.kernel_name for name in recordings for k in llm_perf_opt.load(RECORDINGS / name).data.main_scope.kernels}
    taken = {name for name in names if pattern.search(name)}
    products = {name for name in names if family_of(name) in ("gemm", "convolution")}
    helpers = {
        name for name in products if re.search("splitKreduce|reduce_1Block|dot_kernel|nchwToNhwc|nhwcToNchw", name)
    }
    assert len(taken) > 10
    assert taken == products - helpers


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_presets_of_the_user_are_taken(tools: Path, here: Here) -> None:
    Path("own/profiling/ncu").mkdir(parents=True)
    mine = "description: for one stage\ndefaults: [high]\nncu_cli: {nvtx: {include: 'decode*'}}\n"
    Path("own/profiling/ncu/my.yaml").write_text(mine)
    done = here("--config-dir", "own", "profiling/ncu@pipeline.ncu=my")
    assert done.returncode == 0, done.stderr
    (run,) = runs()
    assert "--section WarpStateStats" in commands(run)
    assert "--nvtx-include LLM@decode/" in commands(run)
    assert "--nvtx-include LLM@prefill/" not in commands(run)
    refused = here("-c", "job", "--config-dir=own", "profiling/ncu@pipeline.ncu=mine")
    assert refused.returncode == 2
    assert "high, my, ncu.default" in refused.stderr
    Path("own/profiling/ncu/broken.yaml").write_text("ncu_cli: [\n")
    refused = here("--config-dir=own", "profiling/ncu@pipeline.ncu=broken")
    assert refused.returncode == 2
    assert "broken.yaml" in refused.stderr
    refused = here("--config-dir=owm")
    assert refused.returncode == 2
    assert "owm' not found" in refused.stderr
    assert "Check the folder" in refused.stderr
    assert runs() == [run]


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
@pytest.mark.parametrize("place", ["", "pipeline.ncu."])
def test_settings_of_ncu_come_from_one_file(tools: Path, here: Here, place: str) -> None:
    settings: dict[str, object] = {"launches": 2, "ncu_cli": {"metrics": ["dram__bytes_read.sum"]}}
    for name in reversed(place.split(".")[:-1]):
        settings = {name: settings}
    Path("stage2.yaml").write_text(yaml.safe_dump(settings))
    done = here("pipeline.ncu=stage2.yaml", "pipeline.ncu.ncu_cli.pipeline_boost_state=dynamic")
    assert done.returncode == 0, done.stderr
    (run,) = runs()
    assert "--metrics dram__bytes_read.sum" in commands(run)
    assert "--pipeline-boost-state dynamic" in commands(run)
    assert yaml.safe_load((run / "config.yaml").read_text())["pipeline"]["ncu"]["launches"] == 2


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("ncu_cli: {sectoins: [Occupancy]}", "Did you mean pipeline.ncu.ncu_cli.sections"),
        ("pipeline: {ncu: {launches: 2}, nsys: {enable: false}}", "also sets pipeline.nsys.enable"),
        ("- 1", "has no settings"),
        ("a: [", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here, content: str | None, answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("stage2.yaml").write_text(content)
    done = here("pipeline.ncu=stage2.yaml")
    assert done.returncode == 2
    assert answer in done.stderr
    assert not runs()


@pytest.mark.process
def test_the_text_of_the_sections_is_ncus_own(tools: Path, here: Here) -> None:
    assert here("pipeline.ncu.ncu_cli.sections=[SpeedOfLight]").returncode == 0
    (run,) = runs()
    text = (run / "ncu" / "sections_report.txt").read_text()
    assert text.strip() == DETAILS.read_text().strip()
    assert main(["report", str(run)]) == 0
    assert (run / "ncu" / "sections_report.txt").read_text() == text


@pytest.mark.process
def test_without_ncu_the_text_of_the_sections_is_ours(tmp_path: Path) -> None:
    counters = RECORDINGS / "ncu-2025.3.1-h200-decoder-2layers-basic.ncu-rep.xz"
    (tmp_path / "ncu").mkdir()
    (tmp_path / "ncu" / "run.ncu-rep").write_bytes(lzma.decompress(counters.read_bytes()))
    ours = tmp_path / "ncu" / "sections_report.txt"
    for _ in range(2):  # there is none, and there is one of ours
        assert main(["report", str(tmp_path)]) == 0
        assert "Section: " in ours.read_text()


def test_an_unknown_group_choice_says_which_there_are() -> None:
    with pytest.raises(UserError, match="there is no such choice"):
        normalised(["profiling/ncu@pipeline.ncu=hi"])


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_the_manifest_has_the_whole_configuration(tools: Path, here: Here) -> None:
    assert here("pipeline.ncu.enable=false", "infer.max_new_tokens=7").returncode == 0
    (run,) = runs()
    assert json.loads((run / "manifest.json").read_text())["settings"]["infer"]["max_new_tokens"] == 7


def test_the_page_about_configuration_is_up_to_date() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "document_keys.py"))
    text = tool["PAGE"].read_text(encoding="utf-8")
    assert tool["page"](text) == text, "run python tools/document_keys.py"


@pytest.mark.process
def test_secrets_of_the_configuration_are_in_no_file(tools: Path, here: Here) -> None:
    secret = "s3cret-value-of-mine"
    done = here(
        "pipeline.ncu.enable=false",
        f"pipeline.workload.command=[{PYTHON},-c,pass,--token,{secret}]",
        "dataset.root=here",
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs()
    for file in run.rglob("*"):
        if file.is_file() and file.suffix not in (".sqlite", ".nsys-rep"):
            assert secret.encode() not in file.read_bytes(), file
