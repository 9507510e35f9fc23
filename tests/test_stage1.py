"""Stage 1 on a CPU: real numbers in every file, nothing counted twice, and no profiler beside another one."""

from __future__ import annotations

import gzip
import json
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import define, evolve

import llm_perf_opt
from conftest import report
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.stage1.other_profilers import attached_profiler
from llm_perf_opt.stage1.session_timing import spread, timed_runs
from llm_perf_opt.stage1.settings import DirectInferenceOptions, Stage1Settings, TorchProfilerOptions
from llm_perf_opt.workloads import marks
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.workload_options import DatasetOptions, InferOptions, ModelOptions, SamplingOptions

torch = pytest.importorskip("torch", reason="stage 1 runs a model")
pytest.importorskip("transformers", reason="stage 1 runs a model")

pytestmark = pytest.mark.torch

from llm_perf_opt.cli.main import main  # noqa: E402
from llm_perf_opt.stage1.direct_inference import predict  # noqa: E402
from llm_perf_opt.stage1.torch_profile import tabulate  # noqa: E402
from llm_perf_opt.stage1.workload_run import run_stage1  # noqa: E402
from llm_perf_opt.workloads.device import forget_others, forget_peak, peak_memory  # noqa: E402
from llm_perf_opt.workloads.registry import open_session  # noqa: E402
from llm_perf_opt.workloads.tokens import ByteTokenizer  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]
SETTINGS = Stage1Settings(
    model=ModelOptions(device="cpu"),
    infer=InferOptions(max_new_tokens=6, batch_size=2),
    dataset=DatasetOptions(prompts=["One prompt.", "Another one, longer.", "A third."]),
    repeats=2,
    direct_inference=DirectInferenceOptions(enable=True),
)


def metrics(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "torch_profiler" / "metrics.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stage1") / "run"

    def analyse(session: Any, folder: Path) -> dict[str, Any]:
        return {"stages": [[stage.name, stage.shape["context"]] for stage in session.static_stages()]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_API_TOKEN", "abc-very-private")
        patch.setattr("llm_perf_opt.stage1.workload_run.analyse_session", analyse)
        assert run_stage1(SETTINGS, path) == 0
    return path


def test_every_file_of_the_contract_is_there_and_filled(run: Path) -> None:
    for name in ("env.json", "inputs.yaml", "predictions.jsonl"):
        assert (run / name).stat().st_size > 0
    for name in ("metrics.json", "report.md", "operators.md", "trace.json.gz"):
        assert (run / "torch_profiler" / name).stat().st_size > 0
    assert not list(run.rglob("*.tmp"))


def test_secrets_of_the_environment_are_nowhere(run: Path) -> None:
    assert "MY_API_TOKEN" not in json.loads((run / "env.json").read_text())
    for path in run.rglob("*"):
        if path.is_file():
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert b"abc-very-private" not in content


def test_stages_nest_and_their_times_fit_into_each_other(run: Path) -> None:
    timing = metrics(run)["timing"]
    stages = {stage["path"]: stage["milliseconds"] for stage in timing["stages"]}
    step = "generate/decode/decode_step"
    assert list(stages) == ["generate", "generate/prefill", "generate/decode", step]
    assert timing["clock"] == "host clock"
    # Two passes over two batches, five decode steps each.
    assert [stages[path]["count"] for path in stages] == [4, 4, 4, 20]
    assert timing["new_tokens"] == 2 * 3 * 6
    whole, prefill, decode = (stages[path]["mean"] for path in list(stages)[:3])
    assert 0 < prefill + decode <= whole
    assert 0 < 5 * stages[step]["mean"] <= decode
    for found in stages.values():
        assert found["min"] <= found["median"] <= found["max"]
        assert found["std"] > 0


def test_the_numbers_people_ask_for_follow_from_the_stages(run: Path) -> None:
    timing = metrics(run)["timing"]
    stages = {stage["path"]: stage["milliseconds"] for stage in timing["stages"]}
    assert timing["time_to_first_token_ms"]["mean"] >= stages["generate/prefill"]["mean"]
    assert timing["time_to_first_token_ms"]["mean"] == pytest.approx(stages["generate/prefill"]["mean"], rel=0.5)
    assert timing["time_per_output_token_ms"]["mean"] == pytest.approx(stages["generate/decode"]["mean"] / 5)
    # Batches of two and of one sequence: 12 and 6 new tokens.
    fastest = 12 / (stages["generate"]["min"] / 1000)
    assert 0 < timing["tokens_per_second"]["max"] <= fastest * 1.0001
    assert timing["decode_tokens_per_second"]["count"] == timing["prefill_tokens_per_second"]["count"] == 4
    assert timing["memory"]["peak_resident_bytes"] > 50_000_000


def test_the_times_are_those_of_a_measured_program(run: Path) -> None:
    """Every instance is in the file that `llm-perf measure` leaves; a pass is a run, and nothing of it is warm-up."""
    measured = report(run / "measure" / "run.json")
    stages = {stage["path"]: stage["milliseconds"] for stage in metrics(run)["timing"]["stages"]}
    timings = {"/".join(region.path): region.timing for region in measured.main_scope.regions}
    assert timings.keys() == stages.keys()
    for path, timing in timings.items():
        assert (timing.source, timing.instances, timing.warmup.instances) == ("undisturbed", stages[path]["count"], 0)
        assert timing.steady.median_ns == pytest.approx(1e6 * stages[path]["median"], abs=1)
        assert len(timing.run_medians_ns) == SETTINGS.repeats
    both = llm_perf_opt.load(run)  # with the trace: its regions have the times that nobody disturbed
    assert {"/".join(r.path): r.timing.steady for r in both.scope("aggregate").regions} == {
        path: timing.steady for path, timing in timings.items()
    }


def test_on_a_gpu_times_are_those_of_its_events_and_the_host_s_where_there_are_none(tmp_path: Path) -> None:
    """The first token is there when the GPU is done with the prefill, which the host has left long before."""
    ms, no = 1_000_000, -(1 << 62)
    rows = [
        (0, 7, 0, 30 * ms, 5 * ms, 45 * ms),  # generate: thread, on the host, on the GPU
        (1, 7, 1 * ms, 2 * ms, 6 * ms, 26 * ms),
        (0, 7, 100 * ms, 130 * ms, 105 * ms, 145 * ms),
        (1, 7, 101 * ms, 125 * ms, no, no),
    ]
    names = [{"name": [0, "LLM", "generate"]}, {"name": [1, "LLM", "prefill"]}]
    (tmp_path / "9-1.names").write_text("".join(json.dumps(name) + "\n" for name in names))
    (tmp_path / "9-1.rows").write_bytes(array("q", [v for row in rows for v in (*row, no, no)]).tobytes())
    collect([tmp_path], tmp_path / "run.json")
    runs = [{t.path: (t.seconds, t.end_s) for t in run} for run in timed_runs(read_measured(tmp_path / "run.json"))]
    assert runs[0] == {"generate": (0.04, 0.04), "generate/prefill": (0.02, 0.021)}
    assert runs[1]["generate"] == (0.04, 0.04)
    took, end = runs[1]["generate/prefill"]
    assert took == pytest.approx(0.024)  # the host took more than the GPU usually does: it waited
    assert end == pytest.approx(0.001 + took)


def test_own_times_of_operators_add_up_to_the_time_that_passed(run: Path) -> None:
    profile = metrics(run)["torch_profiler"]
    assert profile["status"] == "done"
    operators = sum(row["self_cpu_ms"] for row in profile["operators"])
    python = sum(row["self_cpu_ms"] for row in profile["ranges"])
    assert operators + python == pytest.approx(profile["accounted_ms"] + profile["other_threads_ms"], rel=1e-6)
    assert profile["accounted_ms"] == pytest.approx(profile["span_ms"], rel=0.02)
    # What the profiler calls total would count everything many times over.
    assert {"aten::mm", "aten::linear"} <= {row["name"] for row in profile["operators"]}
    assert "aten::mm" in (run / "torch_profiler" / "operators.md").read_text()


def test_the_trace_has_the_ranges_of_the_stages_for_the_report(run: Path) -> None:
    trace = json.loads(gzip.decompress((run / "torch_profiler" / "trace.json.gz").read_bytes()))
    assert trace["llm_perf_ranges"] == "domain@name"
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    steps = ["LLM@decode_step"] * 5
    assert sorted(names) == sorted(["LLM@generate", "LLM@prefill", "LLM@decode", *steps])


def test_inputs_are_written_so_that_they_can_be_run_again(run: Path) -> None:
    written = yaml.safe_load((run / "inputs.yaml").read_text(encoding="utf-8"))
    assert [entry["prompt"] for entry in written] == list(SETTINGS.dataset.prompts)


def test_predictions_are_a_line_an_input(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["input"]["prompt"] for line in lines] == list(SETTINGS.dataset.prompts)
    assert [line["tokens"] for line in lines] == [6, 6, 6]
    assert [line["batch_size"] for line in lines] == [2, 2, 1]
    assert all(line["seconds"] > 0 for line in lines)
    assert metrics(run)["direct_inference"]["items"] == 3


def test_the_static_analysis_gets_the_session_with_the_shapes_that_ran(run: Path) -> None:
    # "Another one, longer." is the longest prompt of the first batch: 20 bytes and the token that begins a text.
    assert metrics(run)["static_analysis"] == {"status": "done", "stages": [["prefill", 21], ["decode", 21 + 2 + 1]]}


def test_the_report_shows_the_stages(run: Path) -> None:
    report = (run / "torch_profiler" / "report.md").read_text(encoding="utf-8")
    for text in ("`tiny_llm`", "`decode_step`", "time to first token", "Weights are random", "host clock"):
        assert text in report


# --- what is left out, and why ---------------------------------------------------------------------------------


def quick(tmp_path: Path, **changes: Any) -> Path:
    few = evolve(SETTINGS, repeats=1, warmup=0, direct_inference=DirectInferenceOptions())
    assert run_stage1(evolve(few, **changes), tmp_path / "run", quiet=True) == 0
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("variable", "value", "tool"),
    [
        ("NSYS_PROFILING_SESSION_ID", "42", "nsys"),
        ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "/x", "ncu"),
        ("LD_PRELOAD", "/opt/nsys/libToolsInjectionProxy64.so", "nsys"),
        ("CUDA_INJECTION64_PATH", "/opt/other/libtool.so", "the tool in /opt/other/libtool.so"),
    ],
)
def test_a_profiler_that_is_watching_is_found_by_its_environment(variable: str, value: str, tool: str) -> None:
    assert attached_profiler({"PATH": "/usr/bin", variable: value}) == tool
    assert attached_profiler({"PATH": "/usr/bin", "LD_PRELOAD": "/usr/lib/libjemalloc.so"}) is None


def test_pytorchs_profiler_stays_off_under_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "42")
    run = quick(tmp_path)
    assert "recorded by nsys" in metrics(run)["torch_profiler"]["reason"]
    assert metrics(run)["timing"]["runs"] == 2
    assert "recorded by nsys" in (run / "torch_profiler" / "report.md").read_text(encoding="utf-8")
    assert not (run / "torch_profiler" / "trace.json.gz").exists()
    assert not (run / "measure").exists()  # where undisturbed times are looked for


def test_what_was_switched_off_says_so(tmp_path: Path) -> None:
    run = quick(tmp_path, torch_profiler=TorchProfilerOptions(enable=False), static_analysis=False)
    found = metrics(run)
    assert found["torch_profiler"]["reason"] == "pipeline.torch_profiler.enable=false."
    assert found["static_analysis"]["reason"] == "pipeline.static_analysis.enable=false."
    assert {path.name for path in (run / "torch_profiler").iterdir()} == {"metrics.json", "report.md"}


def test_a_static_analysis_that_cannot_be_done_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyse(session: Any, folder: Path) -> dict[str, Any]:
        raise UserError("It cannot be counted.", "Use another model.")

    monkeypatch.setattr("llm_perf_opt.stage1.workload_run.analyse_session", analyse)
    run = quick(tmp_path, torch_profiler=TorchProfilerOptions(enable=False))
    assert metrics(run)["static_analysis"] == {"status": "failed", "reason": "It cannot be counted. Use another model."}


def test_warm_up_and_predictions_are_not_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler outside sees the timed passes and nothing else."""
    opened: list[str] = []
    real = marks._Range

    class Recorded(real):  # type: ignore[misc, valid-type]
        def __init__(self, name: str) -> None:
            opened.append(name)
            super().__init__(name)

    monkeypatch.setattr(marks, "_Range", Recorded)
    quick(
        tmp_path,
        warmup=2,
        torch_profiler=TorchProfilerOptions(enable=False),
        direct_inference=DirectInferenceOptions(enable=True),
    )
    assert opened.count("generate") == opened.count("prefill") == 2
    assert opened.count("decode_step") == 10


def test_the_sample_pages_run_through_the_default_model(tmp_path: Path) -> None:
    """The overrides of the documented command lines."""
    run = quick(
        tmp_path,
        dataset=DatasetOptions(
            subset_filelist="datasets/omnidocbench/subsets/dev-3.txt",
            sampling=SamplingOptions(num_epochs=1, num_samples_per_epoch=1, randomize=False),
        ),
        folder=ROOT,
        torch_profiler=TorchProfilerOptions(enable=False),
        static_analysis=False,
    )
    found = metrics(run)
    assert found["inputs"] == 1
    assert found["timing"]["prompt_tokens"] > 500


def test_a_manifest_takes_the_place_of_the_dataset(tmp_path: Path) -> None:
    source = tmp_path / "inputs.yaml"
    source.write_text("- prompt: From the manifest.\n", encoding="utf-8")
    run = quick(tmp_path, manifest=source, torch_profiler=TorchProfilerOptions(enable=False))
    assert yaml.safe_load((run / "inputs.yaml").read_text())[0]["prompt"] == "From the manifest."


def test_every_input_runs_and_the_report_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "inputs.yaml"
    source.write_text("- prompt: One.\n- prompt: Two.\n- prompt: Three.\n", encoding="utf-8")
    off = {"torch_profiler": TorchProfilerOptions(enable=False), "infer": InferOptions(max_new_tokens=1)}
    run = quick(tmp_path, manifest=source, **off)
    assert [entry["prompt"] for entry in yaml.safe_load((run / "inputs.yaml").read_text())] == [
        "One.",
        "Two.",
        "Three.",
    ]
    assert metrics(run)["timing"]["runs"] == 3
    assert "over 3 of 3 inputs, in batches of 1" in (run / "torch_profiler" / "report.md").read_text()
    first = evolve(SETTINGS.dataset, sampling=SamplingOptions(num_samples_per_epoch=1))
    settings = evolve(SETTINGS, repeats=1, warmup=0, manifest=source, dataset=first, static_analysis=False, **off)
    assert run_stage1(settings, tmp_path / "one") == 0
    assert "ran: 1 of 3 inputs" in capsys.readouterr().out
    assert (metrics(tmp_path / "one")["inputs"], metrics(tmp_path / "one")["inputs_given"]) == (1, 3)


def test_a_length_for_prompts_keeps_their_texts_and_says_what_it_did() -> None:
    def tokens(text: str, of_package: bool = False) -> tuple[list[int], list[str]]:
        session = open_session(ModelOptions(device="cpu"), InferOptions(prompt_tokens=6))
        session.load()
        ids = session.prepare([Item("x", prompt=text, of_package=of_package)]).inputs["input_ids"][0].tolist()
        return ids, session.notes

    short, long = ByteTokenizer().encode("ab"), ByteTokenizer().encode("abcdefgh")
    ids, notes = tokens("ab")
    assert ids == short * 2
    assert "infer.prompt_tokens=6: prompts that are shorter are repeated until they are that long." in notes
    ids, notes = tokens("abcdefgh")
    assert ids == long[:6]
    assert "infer.prompt_tokens=6: prompts that are longer are cut." in notes
    ids, notes = tokens("ab", of_package=True)  # nobody asked for these words
    assert len(ids) == 6
    assert "The model has no tokenizer: prompts are random token ids." in notes


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can forget the most memory in use")
def test_the_memory_of_a_job_is_its_own() -> None:
    cpu = torch.device("cpu")
    forgot = forget_peak(cpu)
    held: Any = torch.ones(80_000_000)
    large = peak_memory(cpu, forgot=forgot)
    del held
    forget_others()
    small = peak_memory(cpu, forgot=forget_peak(cpu))
    assert large["peak_resident_bytes"] - small["peak_resident_bytes"] > 250_000_000
    assert small["of"] == "resident memory of this process during the timed passes"


def test_pictures_are_timed_without_tokens(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pages need Pillow")
    run = quick(tmp_path, model=ModelOptions(name="dummy_shallow_resnet", device="cpu", dtype="float32"))
    found = metrics(run)
    assert [stage["path"] for stage in found["timing"]["stages"]] == ["classify", "classify/forward"]
    assert found["timing"]["tokens_per_second"] is None
    names = {row["name"] for row in found["torch_profiler"]["ranges"]}
    assert names == {f"LLM@{name}" for name in ("classify", "forward", "stem", "head")} | {
        f"LLM@stage{number}" for number in range(1, 5)
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written_and_the_way_out_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        run_stage1(Stage1Settings(), tmp_path / "run")
    assert caught.value.code == ExitCode.MISSING_TOOL
    assert not (tmp_path / "run").exists()


def test_predictions_made_before_a_failure_stay(tmp_path: Path) -> None:
    from llm_perf_opt.workloads.registry import open_session

    session = open_session(SETTINGS.model, SETTINGS.infer)
    session.load()
    good: Sequence[Item] = [Item("good", prompt="Fine.")]
    session.tokenizer.encode = lambda text: [5] if text else []  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="is empty"):
        predict(session, [good, [Item("bad", prompt="")]], tmp_path / "deep" / "out.jsonl")
    (line,) = (tmp_path / "deep" / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["input"]["id"] == "good"


# --- tables ------------------------------------------------------------------------------------------------------


@define
class Event:
    """What the tables read of an event of PyTorch's profiler."""

    name: str
    device_type: Any
    microseconds: float = 0.0
    own: float = 0.0
    start: float = 0.0
    is_user_annotation: bool = False
    is_async: bool = False
    is_python_function: bool = False
    thread: int = 1
    device_index: int = 0
    self_device_time_total: float = 0.0
    self_cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0

    @property
    def time_range(self) -> Event:
        return self

    @property
    def end(self) -> float:
        return self.start + self.microseconds

    def elapsed_us(self) -> float:
        return self.microseconds

    @property
    def cpu_time_total(self) -> float:
        return self.microseconds

    @property
    def self_cpu_time_total(self) -> float:
        return self.own


def test_kernels_and_the_operators_that_launch_them_are_counted_once() -> None:
    cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
    profile = tabulate(
        [
            Event("LLM@generate", cpu, 100, 20, is_user_annotation=True),
            Event("LLM@generate", cuda, 90, is_user_annotation=True),  # the range again, on the GPU's side
            Event("aten::linear", cpu, 80, 30),
            Event("aten::mm", cpu, 50, 40, self_device_time_total=60),
            Event("cudaLaunchKernel", cpu, 10, 10),
            Event("gemm", cuda, 60),
            Event("Memcpy DtoH", cuda, 5),
            Event("aten::mm", cpu, 7, 7, thread=2),
            Event("wait", cpu, 999, 999, is_async=True),
            Event("aten::copy_", cpu, 50, 50, start=100),  # after the range
            Event("model.py(12): forward", cpu, 90, 0, is_python_function=True),
        ],
        "LLM@generate",
    )
    assert [(row.name, row.calls, row.total_ms) for row in profile.kernels] == [("gemm", 1, 0.06)]
    assert [(row.name, row.total_ms) for row in profile.copies] == [("Memcpy DtoH", 0.005)]
    assert sum(row.self_device_ms for row in profile.operators) == pytest.approx(profile.kernels_ms)
    assert profile.span_ms == pytest.approx(0.1)
    assert profile.accounted_ms == pytest.approx(0.1)
    assert profile.other_threads_ms == pytest.approx(0.007)
    assert profile.python_ms == pytest.approx(0.02)
    assert {row.name for row in profile.operators} == {"aten::mm", "aten::linear", "cudaLaunchKernel"}
    assert (profile.operators[0].name, profile.operators[0].calls) == ("aten::mm", 2)
    assert profile.notes == []


def test_python_frames_are_no_operators(tmp_path: Path) -> None:
    run = quick(tmp_path, torch_profiler=TorchProfilerOptions(with_stack=True, record_shapes=True, warmup_rounds=0))
    profile = metrics(run)["torch_profiler"]
    assert not [row["name"] for row in profile["operators"] if "(" in row["name"]]
    assert {"aten::mm", "aten::linear"} <= {row["name"] for row in profile["operators"]}
    assert profile["python_ms"] > 0


def test_times_that_do_not_add_up_are_said() -> None:
    cpu = torch.autograd.DeviceType.CPU
    profile = tabulate([Event("LLM@generate", cpu, 100, 20, is_user_annotation=True)], "LLM@generate")
    assert "lost events" in profile.notes[0]


def test_spread_of_nothing_is_nothing_and_of_one_has_no_deviation() -> None:
    assert spread([]) is None
    one = spread([2.0])
    assert one is not None
    assert (one.count, one.mean, one.std) == (1, 2.0, None)
    three = spread([1.0, 2.0, 6.0])
    assert three is not None
    assert (three.mean, three.median, round(three.std or 0, 3)) == (3.0, 2.0, 2.646)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: TorchProfilerOptions(activities=["cpu", "gpu"]), "does not know 'gpu'"),
        (lambda: TorchProfilerOptions(activities="cuda"), "without cpu"),
        (lambda: ModelOptions(dtype="float23"), "Did you mean float32"),
        (lambda: ModelOptions(device="gpu"), "device='gpu' is not known"),
        (lambda: ModelOptions(device="cuda:x"), "device='cuda:x' is not known"),
        (lambda: ModelOptions(compile="fast"), "model.compile='fast' is unknown"),
        (lambda: ModelOptions(compile=True, cuda_graphs=True), "both apply to the decode steps"),
        (lambda: ModelOptions(cuda_graphs=True, device="cpu"), "needs a GPU"),
    ],
)
def test_settings_that_cannot_be_name_the_key(bad: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        bad()
    assert message in caught.value.message
    assert caught.value.fix


def test_settings_are_taken_in_the_ways_people_write_them() -> None:
    assert ModelOptions(device="cuda").device == "cuda:0"
    assert ModelOptions(dtype="torch.float16").dtype == "float16"
    assert ModelOptions(compile=False).compile == ModelOptions(compile=None).compile == ""
    assert ModelOptions(compile=True).compile == "default"
    assert TorchProfilerOptions(activities="cpu, cuda").activities == ("cpu", "cuda")


def test_the_report_of_a_cpu_run_says_what_a_cpu_run_can_say(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times, shares and tokens; no table of dashes, no verdict about a GPU that was not there."""
    assert main(["report", str(run), "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    files = {name: (tmp_path / name).read_text(encoding="utf-8") for name in ("report.md", "stakeholder_summary.md")}
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"<(script|style)[^>]*>.*?</\1>|</?b>", "", html, flags=re.DOTALL)
    for text in (shown, *files.values(), page):
        where = re.search(
            r"LLM@generate takes [\d.]+ m?s without a profiler \([\d.]+ m?s under it[^)]*\): (.*?)\.(?:\s|<|$)", text
        )
        assert where, text  # the longer stage comes first, and on a busy machine that may be either
        tokens = re.search(r"decode [\d.]+ m?s \([\d.]+ %, ([\d.,]+) tokens/s per sequence\)", where[1])
        assert tokens
        # The rate of the timed passes, not that of the one batch under PyTorch's profiler.
        each = metrics(run)["timing"]["time_per_output_token_ms"]["mean"]
        assert float(tokens[1].replace(",", "")) == pytest.approx(1000 / each, rel=0.02)
        assert re.search(r"prefill [\d.]+ m?s \([\d.]+ %\)", where[1])
        assert text.count("Cannot tell, because no GPU work is in the recording") == 1
        for word in ("unknown GPU", "GPU idle", "MFU", "Roofline"):
            assert word not in text
        assert "decode_step" in text
    assert "The model ran on a CPU" in files["report.md"]
    assert "Record again" not in files["report.md"]
    assert not [line for line in files["report.md"].splitlines() if line.count("–") > 1]
    folders = list(tmp_path.glob("ncu/regions/*/report.md"))
    assert folders
    assert not [path for path in folders if "–" in path.read_text(encoding="utf-8")]
