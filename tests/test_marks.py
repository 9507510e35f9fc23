"""Ranges: the same ones for NVTX and for PyTorch's profiler, none while paused, and models that mark their parts."""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.workloads import marks


class FakeDomain:
    """Stands for NVTX where no tool is attached, which is when the real one does nothing at all."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        self.calls.append(f"register {message}")
        return message

    def push_range(self, attributes: str) -> None:
        self.calls.append(f"push {attributes}")

    def pop_range(self) -> None:
        self.calls.append("pop")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> FakeDomain:
    fake = FakeDomain()
    monkeypatch.setattr(marks, "_domain", fake)
    monkeypatch.setattr(marks, "_attributes", {})
    return fake


def test_a_range_is_pushed_and_popped_and_its_name_registered_once(domain: FakeDomain) -> None:
    for _ in range(2):
        with marks.mark("a"), marks.mark("b"):
            pass
    twice = ["push a", "push b", "pop", "pop"]
    assert domain.calls == ["register a", "push a", "register b", "push b", "pop", "pop", *twice]


def test_a_range_ends_also_when_its_block_fails(domain: FakeDomain) -> None:
    with pytest.raises(ValueError, match="x"), marks.mark("a"):
        raise ValueError("x")
    assert domain.calls[-1] == "pop"


def test_nothing_is_marked_while_paused(domain: FakeDomain) -> None:
    with marks.paused():
        with marks.paused(), marks.mark("a"):
            pass
        with marks.mark("b"):
            pass
    with marks.mark("c"):
        pass
    assert domain.calls == ["register c", "push c", "pop"]


def test_the_domain_is_nvtxs_own_and_is_called_llm() -> None:
    nvtx = pytest.importorskip("nvtx", reason="NVTX ranges need the nvtx package")
    assert marks.DOMAIN == "LLM"
    assert marks._open_domain() is nvtx.get_domain("LLM")


@pytest.mark.process
def test_without_the_nvtx_package_marks_do_nothing() -> None:
    code = (
        "import sys; sys.modules['nvtx'] = None\n"
        "from llm_perf_opt.workloads.marks import mark\n"
        "with mark('x'), mark('y'): print('ran')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"


def test_a_range_nobody_watches_costs_microseconds() -> None:
    def one() -> None:
        with marks.mark("decode_step"):
            pass

    best = min(timeit.repeat(one, number=2000, repeat=5)) / 2000
    assert best < 20e-6  # 1 µs on an idle machine; a step of a small model takes milliseconds


@pytest.mark.torch
def test_pytorchs_profiler_sees_the_ranges_with_their_domain(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the profiler is torch's")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with marks.mark("prefill"):
            torch.ones(4) + 1
        with marks.paused(), marks.mark("hidden"):
            torch.ones(4) + 1
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "user_annotation"] == ["LLM@prefill"]


# --- models that mark themselves ---------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_model_marks_itself_and_its_parts(domain: FakeDomain) -> None:
    torch = pytest.importorskip("torch", reason="models need torch")
    from llm_perf_opt.dnn_models.base import NVTXProfileable
    from llm_perf_opt.dnn_models.shallow_resnet import ShallowResNet

    net = ShallowResNet(width=4).eval()
    assert isinstance(net, NVTXProfileable)
    assert not isinstance(torch.nn.Linear(1, 1), NVTXProfileable)
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        plain = net(pixels)
        assert domain.calls == []
        marked = net.forward_with_nvtx(pixels)
    assert torch.equal(plain, marked)
    pushed = [call.removeprefix("push ") for call in domain.calls if call.startswith("push")]
    assert pushed == ["forward", "stem", "stage1", "stage2", "stage3", "stage4", "head"]
    assert domain.calls.count("pop") == 7
    domain.calls.clear()
    with torch.no_grad():
        net(pixels)
    assert domain.calls == []  # the hooks are gone again


@pytest.mark.torch
def test_depth_lists_of_modules_and_the_outer_range_can_be_chosen(domain: FakeDomain) -> None:
    torch = pytest.importorskip("torch", reason="models need torch")
    from llm_perf_opt.dnn_models.base import ProfileableModel

    class Net(ProfileableModel):
        range_name = None
        range_depth = 2

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            with self.marked("tail"):
                return x + 1

    Net().forward_with_nvtx(torch.ones(1, 2))
    pushed = [call.removeprefix("push ") for call in domain.calls if call.startswith("push")]
    assert pushed == ["layers.0", "0", "layers.1", "0", "tail"]


@pytest.mark.torch
def test_a_model_that_fails_leaves_no_range_open(domain: FakeDomain) -> None:
    torch = pytest.importorskip("torch", reason="models need torch")
    from llm_perf_opt.dnn_models.shallow_resnet import ShallowResNet

    net = ShallowResNet(width=4)
    with pytest.raises(RuntimeError):
        net.forward_with_nvtx(torch.ones(1, 5, 32, 32))
    assert [call[:4] for call in domain.calls].count("push") == domain.calls.count("pop") == 2


@pytest.mark.torch
def test_a_range_waits_for_the_gpu_only_where_asked(domain: FakeDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="models need torch")
    from llm_perf_opt.dnn_models.shallow_resnet import ShallowResNet

    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    net = ShallowResNet(width=4).eval()
    assert not net.sync_after_range
    net.forward_with_nvtx(torch.ones(1, 3, 32, 32))
    assert waits == []
    net.sync_after_range = True
    net.forward_with_nvtx(torch.ones(1, 3, 32, 32))
    assert len(waits) == 7
    net.sync_after_range = False
    net.sync_after_range()  # at once, whatever the flag says
    assert len(waits) == 8


@pytest.mark.torch
def test_a_model_may_have_the_flag_in_its_class_or_a_function_of_its_own() -> None:
    pytest.importorskip("torch", reason="models need torch")
    from llm_perf_opt.dnn_models.base import ProfileableModel

    class Waits(ProfileableModel):
        sync_after_range = True

    class Own(ProfileableModel):
        def sync_after_range(self) -> None:
            waited.append(1)

    waited: list[int] = []
    Waits().sync_after_range()  # nothing to wait for without a GPU
    assert Waits().sync_after_range == True  # noqa: E712 - it is compared as people compare flags
    assert not ProfileableModel().sync_after_range
    with Own().marked("part"):
        pass
    assert waited == [1]
