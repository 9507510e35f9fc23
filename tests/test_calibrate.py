"""Calibration: measured with real matrix products (on the CPU here), kept whole, refused with a fix where there is no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.calibration import store
from llm_perf_opt.calibration.peaks import Case, cases, measure
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "gpu": "NVIDIA H200",
        "uuid": "GPU-1",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "torch": "2.11",
        "driver": "580",
        "peaks": {"tensor_bf16": {"value": 7.5e14, "unit": "FLOP/s"}},
        "bandwidth": {"value": 4.2e12, "unit": "B/s"},
        **changes,
    }


def host_clock(run: Callable[[], object], runs: int) -> float:
    start = time.perf_counter()
    for _ in range(runs):
        run()
    return time.perf_counter() - start


@pytest.mark.torch
def test_the_program_measures_what_it_says() -> None:
    """On the CPU: slow, but the same code. A product in fp32 and a copy must come out, at plausible rates."""
    torch = pytest.importorskip("torch")
    found = measure(cases(torch, "cpu", (8, 0), small=True), host_clock, round_seconds=0.002)
    assert {"cuda_fp32", "tensor_fp64", "bandwidth"} <= set(found.best)
    assert 1e8 < found.best["cuda_fp32"] < 1e14
    assert 1e8 < found.best["bandwidth"] < 1e13
    assert all(d["rate"] <= found.best[d["kind"]] for d in found.details)


@pytest.mark.torch
def test_types_follow_the_gpu() -> None:
    torch = pytest.importorskip("torch")

    def kinds(capability: tuple[int, int]) -> set[str]:
        return {case.kind for case in cases(torch, "cuda:0", capability)}

    assert kinds((9, 0)) == {
        "tensor_bf16", "tensor_fp16", "tensor_tf32", "tensor_fp64", "cuda_fp32", "tensor_fp8", "tensor_int8", "bandwidth",
    }  # fmt: skip
    assert kinds((7, 5)) == {"tensor_fp16", "cuda_fp32", "cuda_fp64", "tensor_int8", "bandwidth"}
    assert "tensor_fp8" not in kinds((8, 0))


@pytest.mark.torch
def test_flops_and_bytes_of_a_case_are_exact() -> None:
    torch = pytest.importorskip("torch")
    by_kind = {(c.kind, c.size): c.amount for c in cases(torch, "cuda:0", (9, 0))}
    assert by_kind["tensor_bf16", 8192] == 2 * 8192**3
    assert by_kind["bandwidth", 2**30] == 2 * 2**30


def test_the_best_of_sizes_counts_and_failures_are_named() -> None:
    def failing() -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 8 GiB\nlong story")

    def steady() -> Any:
        return lambda: None

    def clock(run: Any, runs: int) -> float:
        run()
        return 1e-3 * runs

    found = measure(
        iter(
            [
                Case("tensor_bf16", 1, 1e9, steady),
                Case("tensor_bf16", 2, 3e9, steady),
                Case("tensor_fp8", 1, 1e9, failing),
            ]
        ),
        clock,
    )
    assert found.best["tensor_bf16"] == pytest.approx(3e12)
    assert found.skipped == {"tensor_fp8": "CUDA out of memory. Tried to allocate 8 GiB"}


def test_the_store_keeps_one_entry_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "a" / "calibration.json"
    store.save(entry(), path)
    store.save(entry(uuid="GPU-2"), path)
    store.save(entry(bandwidth={"value": 4.3e12, "unit": "B/s"}), path)
    found = store.load(path)
    assert [e["uuid"] for e in found] == ["GPU-2", "GPU-1"]
    assert found[1]["bandwidth"]["value"] == 4.3e12


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"calibrations": [{}]}',
        json.dumps({"calibrations": [entry(peaks={"tensor_bf16": {"value": 1, "unit": "B/s"}})]}),
        json.dumps({"calibrations": [entry(peaks={"tensor_bf16": {"value": 1, "unit": "TFLOP/s"}})]}),
        json.dumps({"calibrations": [entry(bandwidth={"value": -1, "unit": "B/s"})]}),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        store.load(path)
    assert "calibrat" in str(error.value)
    assert error.value.fix


def test_the_default_place_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.default_path() == tmp_path / "llm-perf-opt" / "calibration.json"
    assert store.load_default() == []
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert store.default_path() == Path.home() / ".cache" / "llm-perf-opt" / "calibration.json"


@pytest.mark.torch
def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["calibrate", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert "GPU" in error["message"]
    assert "--calibration FILE" in error["fix"]
    assert error["exit_code"] == 3


@pytest.mark.torch
def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert main(["calibrate"]) == 3
    assert "pip install" in capsys.readouterr().err
