"""Steps of serving engines get their names from what the scheduler decided; what cannot be told is `step`.

vLLM and SGLang are too large to run here. `tools/check_engines.py` found in the sources of their releases what is read
of them (`tests/engines.json`); the stand-ins below have those names.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forks import PROGRAMS, Forks
from llm_perf_opt.inject import environment, read_log
from llm_perf_opt.inject.environment import INJECTED

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate import engine_batches, engines, log
from _llm_perf_annotate.engine_targets import FIELDS, TARGETS
from _llm_perf_annotate.stages import Stages, state

SPECULATORS = "vllm.v1.worker.gpu.spec_decode"
CHECKED = json.loads((Path(__file__).parent / "engines.json").read_text(encoding="utf-8"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The ranges that are opened, a bar for each that is closed."""
    monkeypatch.setenv("LLM_PERF_ANNOTATE_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(log, "_reported", set())
    monkeypatch.setattr(engines, "_met", set())
    yield []
    assert state.step is None


def stages_into(opened: list[str]) -> Stages:
    return Stages(opened.append, lambda: opened.append("|"))


UBATCHES = """
import sys, threading
sys.path.insert(0, {folder!r})
import torch
from vllm.v1.core.sched.scheduler import Request, Scheduler
from vllm.v1.worker.gpu_worker import Worker
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

class Halves:
    def execute_model(self, scheduler_output):
        threads = [threading.Thread(target=model, args=(torch.ones(1, 4),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

worker, scheduler = Worker(), Scheduler()
worker.model_runner = Halves()
scheduler.requests["a"] = Request("a", 7, 1)
worker.execute_model(scheduler.schedule())
threading.Thread(target=model, args=(torch.ones(1, 4),)).start()
"""


@pytest.mark.process
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_threads_of_a_step_run_parts_of_it(forks: Forks, tmp_path: Path) -> None:
    sink = tmp_path / "ranges"
    code = UBATCHES.format(folder=str(PROGRAMS / "engines"))
    ended = forks.run(code, {**os.environ, **environment("stages"), "LLM_PERF_ANNOTATE_SINK": str(sink)}, tmp_path)
    assert ended.returncode == 0, ended.stderr
    pushed = [event["name"] for line in sink.read_text().splitlines() if (event := json.loads(line))["event"] == "push"]
    assert pushed == ["schedule", "prefill, batch = 1, tokens = 7, new = 1", "forward"]  # the last: after the step


# --- transformers ---


@pytest.mark.process
@pytest.mark.skipif(find_spec("torch") is None or find_spec("transformers") is None, reason="needs transformers")
def test_steps_of_continuous_batching_are_what_the_engine_recorded(forks: Forks, tmp_path: Path) -> None:
    sink, notes = tmp_path / "ranges", tmp_path / "log"
    files = {"LLM_PERF_ANNOTATE_SINK": str(sink), "LLM_PERF_ANNOTATE_LOG": str(notes)}
    ended = forks.run(PROGRAMS / "continuous_batching.py", {**os.environ, **environment("stages"), **files}, tmp_path)
    assert ended.returncode == 0, ended.stderr
    recorded = json.loads(ended.stdout)
    assert read_log(notes).troubles == []
    events = [json.loads(line) for line in sink.read_text().splitlines()]
    assert _depth(events) == 1  # calls of the model have no stage of their own
    ranges = [event["name"] for event in events if event["event"] == "push"]
    steps = [name for name in ranges if name.partition(",")[0] not in ("schedule", "update", "warmup")]
    assert steps == [_name(step) for step in recorded["steps"]]
    assert {name.partition(",")[0] for name in steps} == {"prefill", "mixed_step", "decode_step"}
    assert sum(int(name.rpartition(" = ")[2]) for name in steps) == recorded["made"]
    assert ranges.count("schedule") == ranges.count("update") == len(steps)
    found = read_log(notes)
    assert (found.troubles, found.stages["decode_step"]) == ([], Counter(map(_phase, recorded["steps"]))["decode_step"])


def _phase(step: list[list[int]]) -> str:
    """By the tokens that had come out before: another way than that of the annotation."""
    return {(0,): "prefill", (1,): "decode_step", (0, 1): "mixed_step"}[tuple(sorted({min(r[2], 1) for r in step}))]


def _name(step: list[list[int]]) -> str:
    tokens, new = sum(length for length, _, _ in step), sum(new for _, new, _ in step)
    return f"{_phase(step)}, batch = {len(step)}, tokens = {tokens}, new = {new}"


def _depth(events: list[dict[str, Any]]) -> int:
    deepest = depth = 0
    for event in events:
        depth += 1 if event["event"] == "push" else -1
        deepest = max(deepest, depth)
    return deepest


def test_a_batch_in_flight_is_that_of_its_own_pair() -> None:
    """Two batches are in flight at once: the one that is launched is the current pair's."""

    def request(done: int, prompt: int, length: int) -> Any:
        own = SimpleNamespace(position_offset=done, initial_tokens=[0] * prompt)
        return SimpleNamespace(state=own, query_length=length, has_new_token=done >= prompt)

    first, second = ([request(8, 8, 8)], [request(9, 8, 1), request(4, 8, 4)])
    pairs = [SimpleNamespace(host_io=SimpleNamespace(requests_in_batch=of)) for of in (first, second)]
    io = SimpleNamespace(io_pairs=pairs, current_pair=1, compute_stream="stream")
    found = engine_batches.transformers(SimpleNamespace(inputs_and_outputs=io), (), {})
    assert found == engine_batches.Step("mixed_step", 2, 5, 1, "stream")
    io.current_pair = 0
    assert engine_batches.transformers(SimpleNamespace(inputs_and_outputs=io), (), {}).name == "prefill"


# --- vLLM ---


def scheduled(
    tokens: dict[str, int], fresh: dict[str, int] | None = None, made: dict[str, int] | None = None, **more: Any
) -> SimpleNamespace:
    """What vLLM's scheduler hands to its workers. `fresh`: lengths of new prompts; `made`: tokens of others so far."""
    cached = SimpleNamespace(req_ids=list(made or {}), num_output_tokens=list((made or {}).values()))
    cached.num_computed_tokens = more.pop("computed", [])
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=[0] * length, num_computed_tokens=0)
            for name, length in (fresh or {}).items()
        ],
        scheduled_cached_reqs=cached,
        scheduled_spec_decode_tokens=more.pop("guessed", {}),
    )


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (scheduled({"a": 7, "b": 5}, {"a": 7, "b": 9}), "prefill, batch = 2, tokens = 12, new = 1"),
        (scheduled({"a": 1, "b": 1}, made={"a": 3, "b": 1}), "decode_step, batch = 2, tokens = 2, new = 2"),
        (scheduled({"a": 1, "b": 6}, {"b": 6}, {"a": 3}), "mixed_step, batch = 2, tokens = 7, new = 2"),
        (scheduled({"a": 1}, {"a": 1}), "prefill, batch = 1, tokens = 1, new = 1"),  # a prompt of one token
        (scheduled({"a": 1}, made={"a": 0}), "prefill, batch = 1, tokens = 1"),  # the last piece of a prompt
        (scheduled({"a": 40}, made={"a": 3}), "prefill, batch = 1, tokens = 40"),  # pushed out, and read again
        (scheduled({"a": 4, "b": 1}, made={"a": 3, "b": 1}, guessed={"a": [-1] * 3}), "verify, batch = 2, tokens = 5"),
        (
            scheduled({"a": 4, "b": 9}, {"b": 9}, {"a": 3}, guessed={"a": [5, 6, 7]}),
            "mixed_step, batch = 2, tokens = 13",
        ),
        (scheduled({}), None),
    ],
)
def test_steps_of_vllm(output: SimpleNamespace, expected: str | None) -> None:
    for args, kwargs in (((output,), {}), ((), {"scheduler_output": output})):
        step = engine_batches.vllm(None, args, kwargs)
        assert (None if step is None else step.name + step.numbers) == expected


def test_requests_of_vllm_that_make_no_token_or_were_pushed_out() -> None:
    embeds = scheduled({"a": 7}, {"a": 7})
    embeds.scheduled_new_reqs[0].pooling_params = "mean"
    assert engine_batches.vllm(None, (embeds,), {}) == engine_batches.Step("prefill", 1, 7, 0)
    again = scheduled({"a": 8}, {"a": 7})  # with the five tokens that it had made, of which one is left
    again.scheduled_new_reqs[0].prefill_token_ids = [0] * 12
    assert engine_batches.vllm(None, (again,), {}) == engine_batches.Step("prefill", 1, 8, 0)


def test_steps_of_vllm_that_are_of_no_phase() -> None:
    canvas = scheduled({"a": 4}, made={"a": 3}, guessed={"a": [-1] * 4})
    diffusion = SimpleNamespace(model_config=SimpleNamespace(is_diffusion=True))
    assert engine_batches.vllm(diffusion, (canvas,), {}) == engine_batches.Step("step", 1, 4)
    for consumes, expected in ((True, engine_batches.Step("prefill", 1, 7, 1)), (False, "step")):
        transfer = SimpleNamespace(is_ec_consumer=consumes)
        worker = SimpleNamespace(vllm_config=SimpleNamespace(ec_transfer_config=transfer))
        assert engine_batches.vllm(worker, (scheduled({"a": 7}, {"a": 7}),), {}) == expected


def test_an_older_vllm_knows_the_prompts_in_its_worker() -> None:
    output = scheduled({"a": 1, "b": 1}, made={"a": 0, "b": 0}, computed=[8, 7])
    del output.scheduled_cached_reqs.num_output_tokens
    kept = {name: SimpleNamespace(num_prompt_tokens=8) for name in "ab"}
    worker = SimpleNamespace(model_runner=SimpleNamespace(requests=kept))
    assert engine_batches.vllm(worker, (output,), {}) == engine_batches.Step("mixed_step", 2, 2)


# --- SGLang ---

Mode = IntEnum("Mode", "EXTEND DECODE MIXED IDLE TARGET_VERIFY DRAFT_EXTEND DRAFT_EXTEND_V2 SPLIT_PREFILL DLLM_EXTEND")


@pytest.mark.parametrize(
    ("mode", "draft", "expected"),
    [
        ("EXTEND", False, "prefill, batch = 2, tokens = 30"),
        ("SPLIT_PREFILL", False, "prefill"),
        ("DECODE", False, "decode_step, batch = 2, tokens = 2, new = 2"),
        ("MIXED", False, "mixed_step, batch = 2, tokens = 30"),
        ("TARGET_VERIFY", False, "verify, batch = 2, tokens = 8"),
        ("DRAFT_EXTEND_V2", True, "draft, batch = 2, tokens = 8"),
        ("DECODE", True, "draft, batch = 2, tokens = 2"),
        ("IDLE", False, "step, batch = 2, tokens = 8"),
        ("DLLM_EXTEND", False, "step, batch = 2, tokens = 8"),
    ],
)
def test_steps_of_sglang(mode: str, draft: bool, expected: str) -> None:
    batch = SimpleNamespace(forward_mode=Mode[mode], batch_size=2, extend_num_tokens=30)
    batch.input_ids = SimpleNamespace(shape=(8,))
    step = engine_batches.sglang(SimpleNamespace(is_draft_worker=draft), (batch,), {})
    assert (step if isinstance(step, str) else step.name + step.numbers) == expected


# --- the mechanism ---


def worker_module(**methods: Any) -> tuple[ModuleType, type]:
    module = ModuleType("vllm.v1.worker.gpu_worker")
    plain = {"compile_or_warm_up_model": lambda self: self.execute_model(scheduled({"a": 1}, {"a": 1}))}
    module.Worker = type("Worker", (), {**plain, "determine_available_memory": lambda self: 1, **methods})
    return module, module.Worker


def execute_model(self: Any, scheduler_output: Any) -> str:
    return f"ran {scheduler_output.total_num_scheduled_tokens}"


def test_calls_become_stages_and_do_what_they_did(opened: list[str], tmp_path: Path) -> None:
    module, worker = worker_module(execute_model=execute_model, sample_tokens=lambda self, grammar: grammar)
    stages = stages_into(opened)
    engines.annotate(module, stages)
    assert worker().execute_model(scheduled({"a": 1}, made={"a": 3})) == "ran 1"
    assert worker().execute_model(scheduler_output=scheduled({})) == "ran 0"  # nothing to run: no stage
    assert worker().sample_tokens(7) == 7
    worker().compile_or_warm_up_model()
    assert opened == ["decode_step, batch = 1, tokens = 1, new = 1", "|", "sample", "|", "warmup", "|"]
    assert stages.counts == {"decode_step": 1, "sample": 1, "warmup": 1}
    assert read_log(tmp_path / "log").troubles == []  # execute_dummy_batch is not there, and not missed


def test_a_step_that_fails_is_closed(opened: list[str]) -> None:
    def fails(self: Any, scheduler_output: Any) -> None:
        raise KeyError("of the engine")

    module, worker = worker_module(execute_model=fails)
    engines.annotate(module, stages_into(opened))
    with pytest.raises(KeyError, match="of the engine"):
        worker().execute_model(scheduled({"a": 1}, {"a": 1}))
    assert opened == ["prefill, batch = 1, tokens = 1, new = 1", "|"]


def test_what_cannot_be_read_is_a_step_and_is_said_once(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, worker = worker_module(execute_model=execute_model)
    engines.annotate(module, stages_into(opened))
    output = scheduled({"a": 1}, {"a": 1})
    del output.scheduled_spec_decode_tokens
    assert [worker().execute_model(output) for _ in range(2)] == ["ran 1"] * 2
    assert opened == ["step", "|"] * 2
    (trouble,) = read_log(tmp_path / "log").troubles
    assert "Worker.execute_model" in trouble
    assert "scheduled_spec_decode_tokens" in trouble
    assert capsys.readouterr().err.count("called step") == 1


def test_scheduling_that_cannot_be_read_is_no_step(opened: list[str], tmp_path: Path) -> None:
    module = ModuleType("sglang.srt.managers.scheduler")
    plain = {"get_next_batch_to_run": lambda self: 5, "process_batch_result": lambda self: None}
    module.Scheduler = type("Scheduler", (), plain)
    engines.annotate(module, stages_into(opened))
    assert module.Scheduler().get_next_batch_to_run() == 5
    assert opened == []
    assert "get_next_batch_to_run runs could not be read" in read_log(tmp_path / "log").troubles[0]
    idle = module.Scheduler()
    idle.waiting_queue, idle.running_batch = [], SimpleNamespace(is_empty=lambda: True)
    idle.get_next_batch_to_run()  # it goes round and round
    idle.waiting_queue = ["a request"]
    idle.get_next_batch_to_run()
    assert opened == ["schedule", "|"]


def test_absent_and_changed_targets_are_said_and_left_alone(opened: list[str], tmp_path: Path) -> None:
    module, worker = worker_module(execute_model=lambda self, batch: batch)
    del worker.determine_available_memory
    before = vars(worker)["execute_model"]
    engines.annotate(module, stages_into(opened))
    assert vars(worker)["execute_model"] is before
    assert worker().execute_model(3) == 3
    changed, absent = read_log(tmp_path / "log").troubles
    assert "Worker.execute_model of vllm.v1.worker.gpu_worker takes other arguments" in changed
    assert "Worker.determine_available_memory of vllm.v1.worker.gpu_worker is not there" in absent
    noted = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert (noted["event"], noted["changed"]) == ("engine", ["Worker.execute_model"])
    assert noted["absent"] == [
        "Worker.sample_tokens",
        "Worker.determine_available_memory",
        "Worker.execute_dummy_batch",
    ]
    assert noted["hooked"] == ["Worker.compile_or_warm_up_model"]


def test_a_method_behind_a_decorator_that_hides_what_it_takes_is_hooked(opened: list[str]) -> None:
    module, worker = worker_module(execute_model=lambda *args, **kwargs: execute_model(*args, **kwargs))
    engines.annotate(module, stages_into(opened))
    assert worker().execute_model(scheduled({"a": 1}, {"a": 1})) == "ran 1"
    assert opened == ["prefill, batch = 1, tokens = 1, new = 1", "|"]


def test_a_draft_inside_a_draft_is_one(opened: list[str]) -> None:
    runner = ModuleType("sglang.srt.model_executor.model_runner")

    def forward(self: Any, forward_batch: Any) -> None:
        """Launches."""

    runner.ModelRunner = type(
        "ModelRunner", (), {"forward": forward, "sample": lambda self: 0, "is_draft_worker": True}
    )
    speculative = ModuleType("sglang.srt.speculative.eagle_worker_v2")
    batch = SimpleNamespace(forward_mode=Mode.DECODE, batch_size=4)
    speculative.EagleDraftWorker = type(
        "EagleDraftWorker", (), {"draft": lambda self: runner.ModelRunner().forward(batch)}
    )
    stages = stages_into(opened)
    for module in (runner, speculative):
        engines.annotate(module, stages)
    speculative.EagleDraftWorker().draft()
    runner.ModelRunner().forward(batch)
    assert opened == ["draft", "|", "draft, batch = 4, tokens = 4", "|"]


def test_guesses_are_drafts_also_where_the_large_model_guesses_or_tokens_are_chosen(opened: list[str]) -> None:
    """vLLM's runner guesses while it chooses tokens; SGLang's `uno` has the target's own runner guess."""
    worker, speculator = worker_module(execute_model=execute_model)[0], ModuleType(f"{SPECULATORS}.ngram.speculator")
    speculator.NgramGPUSpeculator = type("NgramGPUSpeculator", (), {"propose": lambda self: 7})
    worker.Worker.sample_tokens = lambda self: speculator.NgramGPUSpeculator().propose()
    runner = ModuleType("sglang.srt.model_executor.model_runner")
    runner.ModelRunner = type("ModelRunner", (), {"forward": lambda self, forward_batch: 0, "is_draft_worker": False})
    uno = ModuleType("sglang.srt.speculative.uno_worker_v2")
    batch = SimpleNamespace(forward_mode=Mode.TARGET_VERIFY, batch_size=4)
    uno.UnoWorkerV2 = type("UnoWorkerV2", (), {"_run_draft_block": lambda self: runner.ModelRunner().forward(batch)})
    stages = stages_into(opened)
    for module in (worker, speculator, runner, uno):
        engines.annotate(module, stages)
    assert worker.Worker().sample_tokens() == 7
    uno.UnoWorkerV2()._run_draft_block()
    runner.ModelRunner().forward(batch)
    assert opened == ["sample", "draft", "|", "|", "draft", "|", "verify, batch = 4, tokens = 4", "|"]


def test_names_with_numbers_have_an_end(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_NUMBERS", 2)
    module, worker = worker_module(execute_model=execute_model)
    engines.annotate(module, stages_into(opened))
    for length in (1, 2, 3, 2):
        worker().execute_model(scheduled({"a": length}, {"a": length}))
    assert [name.partition(", tokens")[2] for name in opened[::2]] == [
        " = 1, new = 1",
        " = 2, new = 1",
        "",
        " = 2, new = 1",
    ]


# --- against the sources of releases ---


def test_every_target_was_looked_up_in_two_releases_of_its_engine() -> None:
    for engine, releases in CHECKED.items():
        assert len(releases) >= 2, engine
        for release, found in releases.items():
            assert set(found["methods"]) == {f"{t.module}:{t.method}" for t in TARGETS if t.engine == engine}, release
            assert set(found["fields"]) == {
                f"{f.module}:{f.owner}.{name}" for f in FIELDS if f.engine == engine for name in f.names + f.optional
            }, release
    assert {target.engine for target in TARGETS} == set(CHECKED)


def test_what_is_needed_is_in_the_newest_release_checked() -> None:
    for engine, releases in CHECKED.items():
        newest = releases[max(releases, key=lambda release: tuple(map(int, release.split("."))))]
        for target in TARGETS:
            if target.engine == engine and not target.optional:
                takes = newest["methods"][f"{target.module}:{target.method}"]
                assert takes is not None, target.method
                assert tuple(takes[: len(target.takes)]) == target.takes, target.method
        needed = [f"{f.module}:{f.owner}.{name}" for f in FIELDS if f.engine == engine for name in f.names]
        assert [name for name in needed if not newest["fields"][name]] == []
