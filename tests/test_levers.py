"""What levers do inside a program, as far as a machine without a GPU shows it. Replays of real graphs were not seen here.

CUDA graphs cannot be captured on a CPU: the stand-in runs the captured call again on the tensors it was captured with,
which is what a replay does. All around it is real: shapes, copies of inputs, caches that move in and out.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.inject.environment import INJECTED

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Layer:
    """Of a cache of fixed size, as that of transformers: the length is a tensor, so that nothing changes on the host."""

    is_initialized = True

    def __init__(self) -> None:
        self.keys, self.length = torch.zeros(8), torch.tensor(0)


class StaticCache:
    def __init__(self) -> None:
        self.layers = [Layer()]

    def get_seq_length(self) -> Any:
        return self.layers[0].length


class Model(torch.nn.Module):
    """Remembers what it was given, and gives the sum of it."""

    def forward(self, x: Any, cache: StaticCache) -> dict[str, Any]:
        layer = cache.layers[0]
        layer.keys.index_copy_(0, layer.length.reshape(1), x)
        layer.length.add_(1)
        return {"logits": layer.keys.sum().reshape(1), "cache": cache}


class Graph:
    """Replays by running the call again."""

    def replay(self) -> None:
        for kept, new in zip(self.outputs, self.run(), strict=True):
            kept.copy_(new)


class Program:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.longest, self.in_generate, self.replays = 0, True, 0
        self.stream, self.pools = "the program's", 0
        self.ended: list[int] = []
        self.released: list[int] = []
        self.states: list[str] = []
        self.torch = SimpleNamespace(
            **{name: getattr(torch, name) for name in ("Tensor", "dtype", "is_grad_enabled")},
            is_inference_mode_enabled=torch.is_inference_mode_enabled,
            is_autocast_enabled=torch.is_autocast_enabled,
            cuda=SimpleNamespace(
                CUDAGraph=Graph,
                graph=self.capture,
                graph_pool_handle=self.pool,
                synchronize=lambda: None,
                current_device=lambda: 0,
                current_stream=lambda: self.stream,
                set_stream=lambda stream: setattr(self, "stream", stream),
                default_generators=[SimpleNamespace(clone_state=lambda: "own", graphsafe_set_state=self.states.append)],
            ),
            _C=SimpleNamespace(
                _cuda_endAllocateToPool=lambda device, pool: self.ended.append(pool),
                _cuda_releasePool=lambda device, pool: self.released.append(pool),
            ),
        )
        self.capturing: Graph | None = None

    def pool(self) -> int:
        self.pools += 1
        return self.pools

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times

    @contextmanager
    def capture(self, graph: Graph, **_: Any) -> Any:
        self.capturing, self.stream = graph, "of the capture"
        try:
            yield
        except TypeError:  # as torch: the error that ends a capture hides the one that broke it
            self.capturing = None
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        self.capturing, self.stream = None, "the program's"

    def run(self, x: Any, cache: StaticCache) -> dict[str, Any]:
        """What the lever is given to call."""
        graph, model = self.capturing, Model()
        if graph is None:
            return dict(model(x, cache))
        buffers = vars(cache.layers[0]).copy()  # nothing runs while a graph is captured; a replay knows these alone
        inside = StaticCache()
        vars(inside.layers[0]).update(buffers)
        graph.run = lambda: [model(x, inside)["logits"]]  # type: ignore[attr-defined]
        graph.outputs = [torch.zeros(1)]  # type: ignore[attr-defined]
        return {"logits": graph.outputs[0], "cache": cache}  # type: ignore[attr-defined]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Program]:
    monkeypatch.syspath_prepend(str(INJECTED))
    module = importlib.import_module("_llm_perf_annotate.levers._static_inputs")
    monkeypatch.setattr(module, "_DEVICE", "cpu")
    program = Program()
    return module.Graphs(program), program


def test_calls_of_fixed_shape_are_captured_and_caches_move_in_and_out(graphs: tuple[Any, Program]) -> None:
    found, program = graphs
    one, other = StaticCache(), StaticCache()

    def call(cache: StaticCache, value: float) -> float:
        result = found.call(program, program.run, (torch.tensor([value]),), {"cache": cache})
        assert result["cache"] is cache  # each result has the cache it was called with
        return float(result["logits"])

    with torch.no_grad():
        assert [call(one, 1.0) for _ in range(5)] == [1, 2, 3, 4, 5]
        assert program.counts["calls captured"] == 1
        assert [call(other, 10.0) for _ in range(2)] == [10, 20]  # the second text begins anew
        assert call(one, 1.0) == 6  # and the first is where it was
        assert call(other, 10.0) == 30
    assert program.counts == {"calls captured": 1}


def test_what_changes_on_the_host_is_left_as_it_is(graphs: tuple[Any, Program]) -> None:
    found, program = graphs

    def counted(x: Any, cache: StaticCache) -> dict[str, Any]:
        vars(cache.layers[0])["seen"] = vars(cache.layers[0]).get("seen", 0) + 1
        return program.run(x, cache)

    cache = StaticCache()
    with torch.no_grad():
        for _ in range(5):
            found.call(program, counted, (torch.ones(1),), {"cache": cache})
    assert "calls captured" not in program.counts
    assert program.counts["no graph: its cache counts on the host"] >= 1
    found.call(program, program.run, (torch.ones(1),), {"cache": cache})
    assert program.counts["no graph: its calls keep gradients"] == 1


def test_a_capture_that_fails_leaves_the_program_as_it_was(graphs: tuple[Any, Program]) -> None:
    found, program = graphs

    def waits(x: Any, cache: StaticCache) -> dict[str, Any]:
        if program.capturing is not None:
            vars(cache.layers[0])["seen"] = 1
            raise TypeError("the host waits")
        return program.run(x, cache)

    with torch.no_grad():
        one = StaticCache()
        vars(one.layers[0])["seen"] = 0
        try:
            raise KeyError("of the program, which it handles while it calls the model")
        except KeyError:
            calls = [found.call(program, waits, (torch.ones(1),), {"cache": one}) for _ in range(5)]
        assert [float(call["logits"]) for call in calls] == [1, 2, 3, 4, 5]
        assert vars(one.layers[0])["seen"] == 0
        assert program.counts == {"no graph: it cannot be captured: the host waits": 1}
        assert (program.stream, program.ended, program.released, program.states) == ("the program's", [1], [1], ["own"])
        cache = StaticCache()
        cache.layers.append(Layer())
        for _ in range(3):  # another shape is captured all the same, into memory of its own
            found.call(program, program.run, (torch.ones(1),), {"cache": cache})
    assert program.counts["calls captured"] == 1
    assert program.pools == 2


@dataclass(frozen=True)
class Found:
    """What a program of its own gives back."""

    logits: Any
    name: str


def test_a_class_of_the_programs_own_is_given_back_as_it_is(graphs: tuple[Any, Program]) -> None:
    found, program = graphs
    cache = StaticCache()

    def run(x: Any, cache: StaticCache) -> Found:
        return Found(program.run(x, cache)["logits"], "mine")

    with torch.no_grad():
        results = [found.call(program, run, (torch.ones(1),), {"cache": cache}) for _ in range(5)]
    assert program.counts == {"calls captured": 1}
    assert [(float(one.logits), one.name) for one in results] == [(n, "mine") for n in (1.0, 2.0, 3.0, 4.0, 5.0)]


@pytest.mark.process
@pytest.mark.slow
def test_data_comes_in_the_same_order_from_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    lever = importlib.import_module("_llm_perf_annotate.levers.dataloader_workers")
    data = torch.utils.data
    monkeypatch.setattr(data.DataLoader, "__init__", data.DataLoader.__init__)
    iterator = data.dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(iterator, "_reset", iterator._reset)

    def epochs() -> list[list[int]]:
        torch.manual_seed(0)
        loader = data.DataLoader(list(range(20)), 4, shuffle=True)
        return [[int(n) for batch in loader for n in batch] for _ in range(3)]

    expected = epochs()
    program = Program()
    program.torch = torch
    lever.apply(program)
    assert epochs() == expected
    assert lever.evidence(program) == (True, "1 with workers")
    by_place = data.DataLoader(["a"], 1, False, None, None, 0, list)
    assert (by_place.num_workers > 0, by_place.collate_fn) == (True, list)


def test_generate_has_one_size_of_cache_for_all_texts(graphs: tuple[Any, Program]) -> None:
    found, program = graphs
    program.longest = 100
    model, kwargs = SimpleNamespace(), {"max_new_tokens": 9}
    found.fix_shapes(model, kwargs)
    assert kwargs == {"max_new_tokens": 9, "cache_implementation": "static", "disable_compile": True}
    assert model._previous_max_cache_length == 128  # as transformers remembers the largest


def test_what_generate_refuses_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    trial = importlib.import_module("_llm_perf_annotate.trial")
    program = trial.Program(torch, "", None)
    program.on_generate(lambda model, kwargs: kwargs.update(cache_implementation="static"))
    calls: list[dict[str, Any]] = []

    class Mixin:
        def generate(self, **kwargs: Any) -> Any:
            calls.append(kwargs)
            if "cache_implementation" in kwargs:
                raise ValueError("not supported with Static cache\n")
            return torch.arange(3)

    program.into_generation(Mixin)
    assert Mixin().generate(assistant_model=1).tolist() == [0, 1, 2]
    assert calls[-1] == {"assistant_model": 1}
    assert program.refusal == "generate() refuses it: not supported with Static cache"
    for name in ("static_cache", "cuda_graph"):
        lever = importlib.import_module(f"_llm_perf_annotate.levers.{name}")
        assert lever.evidence(program) == (False, program.refusal)
    assert program.counts["generate"] == 1


def test_padded_layers_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    lever = importlib.import_module("_llm_perf_annotate.levers.padded_linear")
    layer = torch.nn.Linear(30, 101)
    x = torch.randn(2, 3, 30)
    with torch.no_grad():
        expected = layer(x)
        padded = lever._padded(torch, layer)(x)
    assert padded.shape == expected.shape
    assert torch.allclose(padded, expected, atol=1e-6)
    assert layer.weight.shape == (101, 30)  # it may be shared with an embedding


def test_the_first_calls_of_every_text_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    outputs = importlib.import_module("_llm_perf_annotate.outputs").Outputs(torch)
    for _ in range(5):
        outputs.called(torch.randn(1, 7, 20), (torch.arange(7).reshape(1, 7),), {})
        for token in range(99):
            outputs.called(torch.randn(1, 1, 20), (torch.full((1, 1), token),), {})
    found = outputs.read()
    noted = [one["call"] for one in found["outputs"]]
    assert found["calls"] == {"outputs": 500}
    assert noted[:64] == list(range(1, 65))
    assert {101, 201, 301, 401} <= set(noted)
    assert len(noted) < 130  # the times of all others are those of the program
    assert all(abs(one["rms"] - 1) < 0.5 for one in found["outputs"] if len(one["sample"]) > 20)


def test_samples_are_of_all_columns_and_one_lost_value_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(INJECTED))
    outputs = importlib.import_module("_llm_perf_annotate.outputs").Outputs(torch)
    given = torch.zeros(256, 1000)
    given[:, 500:] = 1.0
    outputs.called(given, (), {})
    lost = given.clone()
    lost[17, 123] = float("nan")
    outputs.called(lost, (), {})
    first, second = outputs.read()["outputs"]
    assert 0.4 < sum(first["sample"]) / len(first["sample"]) < 0.6  # of rows of 1000, not of one column
    assert len(first["sample"]) > 90
    assert first["rms"] is not None
    assert second["rms"] is None
