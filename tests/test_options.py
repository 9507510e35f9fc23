"""Every option is declared once, and each declaration has an effect: what is typed reaches the request."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from fake_tools import tools as tools
from llm_perf_opt.cli.arguments import add_options, values_of
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.help_text import parse_ncu_help, parse_nsys_help
from llm_perf_opt.options import KEYS, OPTIONS, Option, checked_values, declared, default_config, flatten, options_of
from llm_perf_opt.options.declared import LAUNCH, RESUME
from llm_perf_opt.request import CounterRequest, ProfileRequest, TimelineRequest, profile_request, report_request
from llm_perf_opt.runners.overrides import normalised
from llm_perf_opt.runners.requests import deep_request
from llm_perf_opt.runners.stage1_settings import stage1_settings

SOURCE = Path(declared.__file__).parents[1]
ELSEWHERE = "".join(p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py") if p != Path(declared.__file__))
# Options that a place other than their declaration asks for by name.
ASKED_FOR = [
    option
    for name, option in vars(declared).items()
    if isinstance(option, Option) and re.search(rf"\b{name}\b", ELSEWHERE)
]


def acting(request: ProfileRequest) -> ProfileRequest:
    """Without values that nobody asks for: they change nothing."""
    return attrs.evolve(request, values={o: v for o, v in request.values.items() if o in ASKED_FOR})


BUILDERS = {
    "profile": lambda values: acting(profile_request(values, ["program"])),
    "plan": lambda values: acting(profile_request(values, ["program"])),
    "report": report_request,
    "ranges": report_request,
}
TRANSCRIPTS = Path(__file__).parent / "transcripts"
# Values that some options need, or that need others beside them.
TYPED = {"--launch": ["--kernel", "gemm", "--launch", "2"], "--hardware": ["--hardware", "bandwidth=1TB/s"]}
SET: dict[str, Any] = {
    "pipeline.ncu.enable": False,
    "pipeline.nsys.enable": False,
    "infer.ignore_eos": True,
    "pipeline.torch_profiler.activities": ["cpu"],
    "model.dtype": "float32",
    "model.name": "hf_causal_lm",
    "model.compile": "default",
    "device": "cpu",
}


def parse(verb: str, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, options_of(verb))
    parser.set_defaults(verb=verb)
    return parser.parse_args(words)


def other_value(option: Option[Any]) -> Any:
    """A value that is allowed and is not the default."""
    if option.key in SET:
        return SET[option.key]
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.kind == "switch":
        return not option.default
    kinds = {"number": 7, "count": 7, "seconds": 7.5, "duration": "7s", "size": "7MB", "mapping": {"peaks": "ncu"}}
    kinds |= {"kernel_id": "1:7:seven:1", "instances": "::[7]"}
    return kinds.get(option.kind, ["seven"] if isinstance(option.default, list) else "seven")


def words_of(option: Option[Any], folder: Path) -> list[str]:
    if option.flag in TYPED:
        return TYPED[option.flag]
    if option.flag == "--calibration":
        file = folder / "calibration.json"
        file.write_text(json.dumps({"schema": 1, "calibrations": []}), encoding="utf-8")
        return [option.flag, str(file)]
    value = other_value(option)
    return (
        [option.flag] if option.kind == "switch" else [option.flag, value[0] if isinstance(value, list) else str(value)]
    )


@pytest.mark.parametrize("verb", BUILDERS)
def test_every_option_that_a_verb_declares_changes_its_request(verb: str, tmp_path: Path) -> None:
    plain = BUILDERS[verb](values_of(parse(verb, [])))
    assert len(options_of(verb)) >= 7
    for option in options_of(verb):
        if option is RESUME:  # which takes a request from a run
            continue
        words = words_of(option, tmp_path)
        before = plain if option.flag != "--launch" else BUILDERS[verb](values_of(parse(verb, words[:2])))
        assert BUILDERS[verb](values_of(parse(verb, words))) != before, option.flag


def test_every_key_changes_the_request_or_the_workload(tmp_path: Path) -> None:
    def reached(**changed: Any) -> tuple[ProfileRequest, object]:
        config = default_config()
        for key, value in changed.items():
            *path, last = key.split(".")
            node = config
            for name in path:
                node = node[name]
            node[last] = value
        request = deep_request(checked_values(config), tmp_path / "run", tmp_path / "config.yaml", tmp_path)
        return attrs.evolve(acting(request), known_as=[]), stage1_settings(config, folder=tmp_path)

    plain = reached()
    for key, option in KEYS.items():
        assert reached(**{key: other_value(option)}) != plain, key


def test_defaults_are_those_of_the_request() -> None:
    assert profile_request(values_of(parse("profile", [])), ["program"]) == ProfileRequest(command=["program"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("repeats", 0),
        ("warmup", -1),
        ("pipeline.torch_profiler.warmup_rounds", -1),
        ("infer.max_new_tokens", 0),
        ("infer.batch_size", "4"),
        ("infer.prompt_tokens", 0),
        ("dataset.sampling.num_samples_per_epoch", 0),
        ("model.config", [1]),
        ("pipeline.annotate.mode", "all"),
        ("pipeline.annotate.depth", 0),
        ("pipeline.ncu.level", "rooflin"),
    ],
)
def test_a_value_that_a_key_cannot_have_is_refused_by_its_name(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=re.escape(f"{key}={value}")) as error:
        KEYS[key].check(value)
    assert "Allowed: " in error.value.fix


def test_the_value_of_an_option_is_found_on_the_request() -> None:
    words = ["--kernel", "gemm", "--launch", "2"]
    assert profile_request(values_of(parse("profile", words)), ["program"]).value(LAUNCH) == 2
    assert ProfileRequest(command=["program"]).value(LAUNCH) is None
    size: Option[int] = Option(flag="--most", kind="size", default="2GB")
    assert ProfileRequest(command=["program"]).value(size) == 2_000_000_000
    assert profile_request({size: "1MB"}, ["program"]).value(size) == 1_000_000


def test_places_of_options_exist() -> None:
    assert {place for option in options_of("profile") for place in option.to}
    for option in OPTIONS:
        for place in option.to if "profile" in option.verbs or option.key else ():
            found: object = ProfileRequest(command=["program"], counters=CounterRequest(), timeline=TimelineRequest())
            for name in place.split("."):
                found = getattr(found, name)


CONTRACT = """
pipeline.ncu.ncu_cli: set sections metrics replay_mode target_processes nvtx.include nvtx.exclude nvtx.push_pop_scope range_filter kernel_name kernel_name_base kernel_id launch_skip launch_count filter_mode graph_profiling app_replay_match app_replay_mode clock_control cache_control import_sass force_overwrite extra_args
pipeline.ncu: enable gating_nvtx strategy aggregate kernels.include kernels.exclude sample strict timeout_s
pipeline.nsys: enable trace sample capture_range capture_range_end nvtx_capture cuda_graph_trace timeout_s
pipeline.torch_profiler: enable activities record_shapes profile_memory with_stack warmup_rounds
pipeline: static_analysis.enable direct_inference.enable direct_inference.output.path workload.module workload.command
model: name path dtype config
infer: max_new_tokens
dataset: root subset_filelist sampling.num_epochs sampling.num_samples_per_epoch sampling.randomize sampling.seed
run: mode top_n_kernels
inputs: manifest
"""


def test_every_key_of_the_contract_exists() -> None:
    for line in CONTRACT.split("\n")[1:-1]:
        prefix, _, names = line.partition(": ")
        for name in names.split():
            assert f"{prefix}.{name}" in KEYS
    assert {"device", "repeats"} <= set(KEYS)
    assert dict(flatten(default_config())) == {key: option.default for key, option in KEYS.items()}


@pytest.mark.parametrize(
    "words",
    [
        "pipeline.ncu.enable=true pipeline.ncu.ncu_cli.replay_mode=range pipeline.ncu.ncu_cli.nvtx.include=LLM@* pipeline.ncu.ncu_cli.sections=[SpeedOfLight,MemoryWorkloadAnalysis,Occupancy,SchedulerStats]",
        "pipeline.ncu.ncu_cli.replay_mode=app-range pipeline.ncu.ncu_cli.nvtx.include=prefill*",
        "pipeline.ncu.ncu_cli.replay_mode=kernel pipeline.ncu.ncu_cli.nvtx.include=decode*",
        "nvtx.include=LLM@* pipeline.ncu.ncu_cli.kernel_name=my_exact_kernel_name pipeline.ncu.ncu_cli.kernel_name_base=demangled",
        "nvtx.include=decode* pipeline.ncu.ncu_cli.kernel_name=regex:.*matmul.*",
        "hydra.run.dir=tmp/profile-output/${now:%Y%m%d-%H%M%S} device=cuda:0 pipeline.torch_profiler.enable=false pipeline.static_analysis.enable=false dataset.subset_filelist=datasets/omnidocbench/subsets/dev-3.txt dataset.sampling.num_epochs=1 dataset.sampling.num_samples_per_epoch=1 dataset.sampling.randomize=false infer.max_new_tokens=64",
        "device=cuda:0 repeats=1 profiling.activities=[cpu,cuda] +run.mode=deep +inputs.manifest=/abs/inputs.yaml hydra.run.dir=DIR hydra.job.chdir=true",
        "profiling=@profiling/torch/torch-profiler.min +run.mode=deep hydra.run.dir=DIR",
        "-m run.mode=deep,light",
    ],
)
def test_every_override_of_the_contract_parses(words: str) -> None:
    assert len(normalised(words.split())) == len(words.split())


def test_values_known_beforehand_are_those_of_the_profilers() -> None:
    ncu = parse_ncu_help((TRANSCRIPTS / "ncu-2025.3.1-help.txt").read_text(encoding="utf-8"))
    nsys = parse_nsys_help((TRANSCRIPTS / "nsys-2025.3.1-help.txt").read_text(encoding="utf-8"))
    compared = 0
    for key, option in KEYS.items():
        for prefix, known in (("pipeline.ncu.ncu_cli.", ncu), ("pipeline.nsys.", nsys)):
            flag = "--" + key.removeprefix(prefix).replace(".", "-").replace("_", "-")
            if key.startswith(prefix) and option.choices:
                assert set(option.choices) == set(known[flag].values or ()), key
                compared += 1
    assert compared >= 12


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize("verb", ["profile", "plan"])
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--calibration", "/nope"], "/nope cannot be read"),
        (["--replay-mode", "kernal"], "did you mean kernel?"),
        (["--level", "rofline"], "did you mean roofline?"),
        (["--budget", "soon"], "60s, 2m"),
        (["--max-size", "big"], "2GB or 500MB"),
        (["--hardware", "bandwidth"], "has no value"),
        (["--launch", "2"], "--kernel"),
    ],
)
def test_a_mistake_is_found_before_any_tool_is_looked_for(
    verb: str, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, *words, "--", "true"]) == 2
    assert answer in capsys.readouterr().err
    assert not Path("tmp").exists()


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody may look for a profiler."""
    # Before: what is imported meanwhile would keep what is put in place of it.
    import llm_perf_opt.capture.preparation
    import llm_perf_opt.trying.start  # noqa: F401
    from llm_perf_opt.nsight import tools

    def looked(*_: object, **__: object) -> None:
        raise AssertionError("a tool was looked for")

    monkeypatch.chdir(tmp_path)
    for name in ("find_nsys", "find_ncu", "Asked"):
        monkeypatch.setattr(tools, name, looked)


def test_a_bad_value_of_ncu_is_refused_where_there_is_no_ncu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_perf_opt.errors import UserError

    config = default_config()
    config["pipeline"]["ncu"]["ncu_cli"]["replay_mode"] = "kernal"
    with pytest.raises(UserError) as refused:
        checked_values(config)
    assert refused.value.code == 2
    assert "pipeline.ncu.ncu_cli.replay_mode=kernal" in refused.value.message
    assert "kernel, application, range, app-range" in refused.value.fix
    assert "Did you mean kernel?" in refused.value.fix


@pytest.mark.process
def test_quiet_holds_for_a_resumed_run_too(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "-q", "--no-counters", "--out", "run", "--", "true"]) == 0
    capsys.readouterr()
    assert main(["profile", "--resume", "run"]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert main(["profile", "--resume", "run", "-q"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.process
def test_profile_uses_the_calibration_it_is_given(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peaks = {"tensor_bf16": {"value": 7e14, "unit": "FLOP/s"}}
    entry = {"gpu": "NVIDIA H200", "uuid": "", "compute_capability": "9.0", "peaks": peaks, "bandwidth": None}
    Path("mine.json").write_text(json.dumps({"schema": 1, "calibrations": [entry]}), encoding="utf-8")
    words = ["--no-counters", "--calibration", "mine.json", "--", "true"]
    assert main(["profile", "-q", "--out", "run", *words]) == 0
    assert "700000000000000" in Path("run/report.json").read_text(encoding="utf-8")
