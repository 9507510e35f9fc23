"""All jobs of a sweep in one comparison: swept keys, Pareto front, the best; and jobs that take turns on a GPU."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from attrs import evolve
from hydra.core.plugins import Plugins

import llm_perf_opt
from conftest import RECORDINGS
from fake_tools import json_alone as json_alone
from fake_tools import small_tools as small_tools
from fake_tools import tools as tools
from hydra_plugins.llm_perf_ray_launcher import can_run, nobody_runs
from llm_perf_opt.cli.main import main
from llm_perf_opt.comparing.sweep import Sweep, SweepJob, _front, compare_jobs
from llm_perf_opt.comparing.sweep_files import render_sweep_html, render_sweep_md
from llm_perf_opt.comparing.sweep_plots import sweep_plots
from llm_perf_opt.errors import UserError
from llm_perf_opt.files import cache_folder
from llm_perf_opt.rundir.inventory import take_inventory
from llm_perf_opt.runners import app, deep_profile_runner, llm_profile_runner, overrides
from llm_perf_opt.runners.gpu_slot import gpu_slot, lock_file
from printed import check_printed

# Batch: time of a step, tokens a second, energy. The last is beaten by all.
POINTS = {"1": (10e6, 100.0, 2.0), "8": (12e6, 660.0, 0.5), "64": (40e6, 1600.0, 0.3), "65": (41e6, 1500.0, 0.4)}


def jobs() -> list[SweepJob]:
    return [
        SweepJob(str(n), {"infer.batch": batch}, "LLM@decode", time, tokens, energy, "launch-bound")
        for n, (batch, (time, tokens, energy)) in enumerate(POINTS.items())
    ]


def test_the_front_are_those_that_nobody_beats() -> None:
    assert _front(jobs()) == {"0", "1", "2"}
    without_energy = [evolve(job, energy_per_token_j=None) for job in jobs()]
    assert _front(without_energy) == {"0", "1", "2"}
    only_time = [evolve(job, tokens_per_s=None) for job in without_energy]
    assert _front(only_time) == {"0"}
    assert _front([evolve(job, problem="it failed") for job in jobs()]) == set()


def test_the_best_is_named_and_everything_is_escaped() -> None:
    best = {"tokens_per_s": "2", "time_ns": "0", "energy_per_token_j": "2"}
    listed = [evolve(job, on_front=job.name in "012") for job in jobs()]
    listed.append(SweepJob("4", {"infer.batch": "<b>|`x`"}, problem="The program <failed>."))
    sweep = Sweep(["infer.batch"], listed, best)
    assert sweep.sentences == [
        "Most tokens a second and least energy a token: infer.batch=64 (job 2)",
        "Shortest time: infer.batch=1 (job 0)",
    ]
    text, page = render_sweep_md(sweep), render_sweep_html(sweep)
    assert "| `2` | `64` | LLM@decode | 40 ms | 1,600 | 0.625 | 0.3 J | launch-bound | yes |" in text
    assert "<b>" not in page
    picture = page[page.index('aria-label="Tokens a second over the time of a step"') :].partition("</svg>")[0]
    assert picture.count("<circle") == 4
    assert page.count("<polyline") == 4  # the front, and three measures over the one key


def test_plots_over_the_swept_keys_join_what_differs_in_one_key() -> None:
    base = [evolve(job, on_front=True) for job in jobs()[:3]]
    both = [evolve(job, values={**job.values, "model": "a"}) for job in base]
    both += [evolve(job, name=f"b{job.name}", values={**job.values, "model": "b"}, bound="<i>") for job in base[:2]]
    both[0] = evolve(both[0], energy_per_token_j=None)
    found = sweep_plots(Sweep(["infer.batch", "model"], both))
    assert [(plot.key, plot.measure) for plot in found.plots] == [
        (key, measure) for key in ("infer.batch", "model") for measure in ("tokens/s", "ms/token", "J/token")
    ]
    assert found.bounds == ["launch-bound", "<i>"]
    tokens, _, energy = found.plots[:3]
    assert [text for _, text in tokens.ticks] == ["1", "8", "64"]  # by size
    assert [len(line.split()) for line in tokens.lines] == [3, 2]  # one of each model
    assert (len(tokens.dots), len(energy.dots)) == (5, 4)
    assert tokens.dots[2].y == pytest.approx(120 * (1 - 1 / 1.05), abs=0.1)  # the most
    assert tokens.dots[2].title == "infer.batch=64, model=a: 1,600 tokens/s, launch-bound"
    assert [len(line.split()) for line in found.plots[3].lines] == [2, 2]  # of each batch size that both have
    page = render_sweep_html(Sweep(["infer.batch", "model"], both))
    assert "<i>" not in page
    assert sweep_plots(Sweep(["infer.batch"], jobs()[:1])).plots == []


def test_swept_keys_are_those_that_were_typed_with_several_values() -> None:
    report = llm_perf_opt.load(next(iter(sorted(RECORDINGS.glob("nsys-*-train.sqlite*")))))
    configurations = {
        "0": {"model.name": "a", "model.path": "/a", "infer.batch": 1, "device": "cpu"},
        "1": {"model.name": "b", "model.path": "/b", "infer.batch": 8, "device": "cpu"},
    }
    reports = {"0": report.data, "1": report.data}
    assert compare_jobs(configurations, reports, {}, typed=["model"]).keys == ["model.name"]
    found = compare_jobs(configurations, reports, {})
    assert found.keys == ["model.name", "model.path", "infer.batch"]
    assert [job.time_ns is not None for job in found.jobs] == [True, True]
    lost = compare_jobs(configurations, {"0": report.data}, {"1": "It was killed."})
    assert [job.problem for job in lost.jobs] == ["", "It was killed."]


def test_a_job_without_the_common_stage_is_listed_and_is_no_best() -> None:
    train, other = (
        llm_perf_opt.load(next(iter(sorted(RECORDINGS.glob(f"nsys-*-{name}.sqlite*"))))).data
        for name in ("train", "decoder-8layers-warm")
    )
    found = compare_jobs({name: {"n": name} for name in "012"}, {"0": train, "1": train, "2": other}, {})
    common, lone = found.jobs[0].stage, found.jobs[2]
    assert lone.stage != common
    assert lone.time_ns is not None
    assert "2" not in found.best.values()
    assert [job.on_front for job in found.jobs] == [True, True, False]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "tools")
def test_a_sweep_ends_with_one_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    program = f"pipeline.workload.command=[{sys.executable},-c,pass]"
    words = [program, "-m", "run.mode=light", "run.top_n_kernels=5,6", "hydra.sweep.dir=sweep"]
    assert app.start(deep_profile_runner.job, words) == 0
    assert "All jobs compared: sweep/sweep.html" in capsys.readouterr().out
    found = json.loads(Path("sweep/sweep.json").read_text())
    assert found["keys"] == ["run.top_n_kernels"]
    assert [(job["name"], job["values"]["run.top_n_kernels"]) for job in found["jobs"]] == [("0", "5"), ("1", "6")]
    assert all(job["time_ns"] for job in found["jobs"])
    assert take_inventory(Path("sweep")).others == []
    assert main(["runs", "sweep", "sweep", "--json"]) == 0  # again, over its own files
    check_printed("runs sweep", capsys.readouterr().out)
    assert main(["runs", "sweep", "sweep/0"]) == 2


def is_held(lock: Path) -> bool:
    with lock.open("a") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_jobs_take_turns_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    lock = cache_folder() / f"gpu-{os.uname().nodename}-7.lock"
    with gpu_slot("cuda:1"):
        assert is_held(lock)
        with gpu_slot("cuda:0"), gpu_slot("cpu"):  # another GPU, and none
            pass
    assert not is_held(lock)


def test_a_gpu_is_known_by_its_number_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else jobs of Slurm on different GPUs, or on nodes with one home folder, would wait for each other."""

    def number(device: str, **variables: str) -> str:
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        lock = lock_file(device).name
        assert lock.startswith(f"gpu-{os.uname().nodename}-")
        return lock.removesuffix(".lock").rpartition("-")[2]

    assert number("cuda") == "0"
    assert number("cuda:0", CUDA_VISIBLE_DEVICES="0", SLURM_JOB_GPUS="3") == "3"  # it sees one, as number 0
    assert number("cuda:1", CUDA_VISIBLE_DEVICES="0,1", SLURM_STEP_GPUS="2,5", SLURM_JOB_GPUS="2,5,6") == "5"
    assert number("cuda:0", CUDA_VISIBLE_DEVICES="2", SLURM_JOB_GPUS="0,1,2,3") == "2"  # the user's choice among them
    assert number("cuda:0", CUDA_VISIBLE_DEVICES="GPU-a/b", SLURM_JOB_GPUS="") == "a_b"


@pytest.mark.parametrize("launch", ["joblib", "slurm", "ray"])
def test_launchers_have_presets_and_a_missing_one_is_named(launch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        overrides.normalised([f"launch={launch}"])
    assert refused.value.fix == f"pip install 'llm-perf-opt[{launch}]'"
    monkeypatch.setattr(overrides, "find_spec", lambda name: object())
    assert overrides.normalised([f"launch={launch}"]) == [f"launch={launch}"]
    if launch != "ray":
        preset = yaml.safe_load(
            (Path(overrides.__file__).parents[1] / "conf" / "launch" / f"{launch}.yaml").read_text()
        )
        # Slurm gives each job a GPU of its own; on one machine jobs take turns (`gpu_slot`).
        launcher = preset["hydra"]["launcher"]
        assert launcher.get("gres", launcher) in ("gpu:1", {"n_jobs": 2})
    with pytest.raises(UserError, match="there is no such choice"):
        overrides.normalised(["launch=slrum"])


def test_hydra_finds_the_launcher_for_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`make cluster` runs sweeps on a real Ray."""
    monkeypatch.setattr(overrides, "find_spec", lambda name: object())
    asked = ["launch=ray", "hydra.launcher.ray.remote.num_cpus=4"]
    assert app.start(llm_profile_runner.job, [*asked, "--cfg", "hydra", "-p", "hydra.launcher"]) == 0
    launcher = yaml.safe_load(capsys.readouterr().out)
    assert launcher["_target_"] in Plugins.instance().class_name_to_class
    assert launcher["ray"]["remote"] == {"num_cpus": 4, "num_gpus": 1, "max_calls": 1, "max_retries": 0}
    monkeypatch.setitem(sys.modules, "ray", None)  # and without Ray it says what is missing
    assert app.start(llm_profile_runner.job, ["-m", *asked, f"hydra.sweep.dir={tmp_path}", "infer.batch_size=1,2"]) == 3
    assert "pip install 'llm-perf-opt[ray]'" in capsys.readouterr().err


def test_jobs_are_for_nodes_that_have_all_they_ask_for() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, object]:
        return {"Alive": alive, "Resources": resources}

    asked = {"num_cpus": 2, "num_gpus": 1, "max_calls": 1}
    assert not can_run(asked, [])
    assert not can_run(asked, [node(CPU=8), node(CPU=1, GPU=4), node(False, CPU=8, GPU=8)])
    assert can_run(asked, [node(CPU=8), node(CPU=2, GPU=1)])
    assert can_run({"num_cpus": 2, "num_gpus": 0, "resources": None}, [node(CPU=8)])
    assert not can_run({"num_gpus": 0.5, "resources": {"fast": 1}}, [node(GPU=1)])
    assert "asks for (CPU: 2, GPU: 1)" in nobody_runs(asked).message


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("json_alone", "small_tools")
def test_the_preset_of_joblib_runs_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    program = f"pipeline.workload.command=[{sys.executable},-c,pass]"
    words = [program, "-m", "launch=joblib", "run.mode=light", "run.top_n_kernels=5,6", "hydra.sweep.dir=sweep"]
    assert app.start(deep_profile_runner.job, words) == 0
    assert len(json.loads(Path("sweep/sweep.json").read_text())["jobs"]) == 2
    manifest = Path("sweep/0/manifest.json")
    command = json.loads(manifest.read_text())["command"]
    assert command[3:] == words  # though another process has run it
    # One that was killed has no times to compare, whatever it has measured.
    content = {**json.loads(manifest.read_text()), "state": "running", "pid": 2**22 + 1}
    manifest.write_text(json.dumps(content))
    assert main(["runs", "sweep", "sweep"]) == 0
    killed, whole = json.loads(Path("sweep/sweep.json").read_text())["jobs"]
    assert (killed["problem"], whole["problem"]) == ("It was killed before it was done.", "")


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_a_sweep_on_a_cpu_compares_what_the_jobs_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs of stage 1 leave recordings and no report; which parts of a model are stages differs between them."""
    words = ["-m", "device=cpu", "model=tiny_llm", "infer.max_new_tokens=2,48", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert app.start(llm_profile_runner.job, words) == 0
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert found["keys"] == ["infer.max_new_tokens"]
    assert len({job["stage"] for job in found["jobs"]}) == 1
    assert all(job["time_ns"] and job["tokens_per_s"] and not job["problem"] for job in found["jobs"])
    # On a busy machine one job may be the best in both.
    assert re.search(r"shortest time[^\n]*: infer\.max_new_tokens=2 \(job 0\)", capsys.readouterr().out, re.IGNORECASE)
    assert any(job["on_front"] for job in found["jobs"])
    assert found["best"].keys() == {"tokens_per_s", "time_ns"}
    assert not list((tmp_path / "sweep").glob("*/report.json"))


def test_tokens_of_a_batch_are_those_of_all_its_sequences() -> None:
    """A step makes one for each sequence: ranges show as many steps of eight as of one."""
    report = llm_perf_opt.load(next(iter(sorted(RECORDINGS.glob("nsys-*-decoder-8layers-warm.sqlite*"))))).data
    sizes: dict[str, dict[str, object]] = {"0": {"batch": 1}, "1": {"batch": 8}}
    found = compare_jobs(sizes, dict.fromkeys(sizes, report), {}, made={"0": 4.0, "1": 32.0})
    one, eight = found.jobs
    assert one.time_ns is not None
    assert one.tokens_per_s == pytest.approx(4e9 / one.time_ns)
    assert eight.tokens_per_s == pytest.approx(32e9 / one.time_ns)
    assert found.best["tokens_per_s"] == "1"
