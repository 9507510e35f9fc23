"""Does every rule recognise its case, and does it gain what it promises? Programs before and after the fix, and tuned ones.

    python benchmarks/rules.py [--only TEXT] [--device cuda|cpu] [--keep DIR] [--out DIR]
    python benchmarks/rules.py --rate DIR          # what --keep left, with the code as it is now

`benchmarks/rules/` has a program for each rule, `before()` and `after()` the fix. Both are timed in turns, with CUDA events
over steady steps, and recorded by PyTorch's profiler; the recording gets a report with the times that were measured, as
`llm-perf profile` has them. A rule holds if the program before gets its fix, the one after does not, and what was
predicted is within a factor of 1.5 of what was measured. The programs of `tuned.py` must get no fix of the list.
Results go to benchmarks/results/rules-h200.{json,md}.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src")]
PROGRAMS = ROOT / "benchmarks" / "rules"
RESULTS = ROOT / "benchmarks" / "results"
TIMES = "times.json"
STEP = "step"
_WARM_UP = 3
_RECORDED = 5
_ROUNDS = 3
_ROUND_S = 0.12
_MOST_STEPS, _FEWEST_STEPS = 60, 3


# -- on the GPU ---------------------------------------------------------------------------------------


def measure(folder: Path, device: str, only: str) -> dict[str, Any]:
    """Time and record the programs; what was measured, by program and variant, also as a file in `folder`."""
    import torch

    from place import Place

    at, found = Place(device), {}
    torch.manual_seed(0)
    _warm_profiler(torch, at)
    for name, variants in _programs(only):
        began = time.monotonic()
        try:
            found[name] = _measure_one(torch, at, name, variants, folder)
        except Exception as problem:  # one program must not cost the others
            found[name] = {"problem": f"{type(problem).__name__}: {str(problem)[:300]}"}
        torch.set_float32_matmul_precision("highest")
        gc.collect()
        if at.gpu:
            torch.cuda.empty_cache()
        found[name]["seconds"] = round(time.monotonic() - began, 1)
        print(name, found[name], flush=True)
    head = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if at.gpu else "cpu"}
    (folder / TIMES).write_text(json.dumps({**head, "programs": found}, indent=1) + "\n", encoding="utf-8")
    return {**head, "programs": found}


def _programs(only: str) -> list[tuple[str, dict[str, Callable[..., Any]]]]:
    import tuned

    found = []
    for file in sorted(PROGRAMS.glob("*.py")):
        if only in file.stem:
            module = _module(file)
            found.append((file.stem, {"before": module.before, "after": module.after}))
    found += [
        (f"tuned-{make.__name__}", {"tuned": make}) for make in tuned.PROGRAMS if only in f"tuned-{make.__name__}"
    ]
    return found


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"rule_{file.stem}", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _measure_one(torch: Any, at: Any, name: str, variants: dict[str, Any], folder: Path) -> dict[str, Any]:
    steps = {variant: make(at) for variant, make in variants.items()}
    counts = {variant: _count(torch, at, step) for variant, step in steps.items()}
    each: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(_ROUNDS):
        for variant, step in steps.items():
            each[variant].append(_timed(torch, at, step, counts[variant]))
    for variant, step in steps.items():
        _record(torch, at, step, folder / f"{name}.{variant}.json.gz")
    return {variant: {"ms": statistics.median(times), "all": times} for variant, times in each.items()}


def _count(torch: Any, at: Any, step: Callable[[], Any]) -> int:
    """How many steps fill a round, after a warm-up."""
    for _ in range(_WARM_UP):
        step()
    one = _timed(torch, at, step, _FEWEST_STEPS) / 1e3
    return max(_FEWEST_STEPS, min(_MOST_STEPS, round(_ROUND_S / max(one, 1e-6)))) if at.gpu else _FEWEST_STEPS


def _timed(torch: Any, at: Any, step: Callable[[], Any], count: int) -> float:
    """Milliseconds of a step."""
    if not at.gpu:
        began = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - began) / count * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    step()  # the host is ahead of the GPU, where it can be
    begin.record()
    for _ in range(count):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / count


def _record(torch: Any, at: Any, step: Callable[[], Any], file: Path) -> None:
    with _profiler(torch, at) as profiler:
        for _ in range(_RECORDED + 1):
            with torch.profiler.record_function(STEP):
                step()
        if at.gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))


def _warm_profiler(torch: Any, at: Any) -> None:
    with _profiler(torch, at):
        torch.ones(1, device=at.device) + 1


def _profiler(torch: Any, at: Any) -> Any:
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if at.gpu else [])]
    return torch.profiler.profile(activities=kinds, record_shapes=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name has this text")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", type=Path, help="where times and recordings go")
    parser.add_argument("--rate", type=Path, metavar="DIR", help="measure nothing: rate what --keep left there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    chosen.keep.mkdir(parents=True, exist_ok=True)
    measure(chosen.keep, chosen.device, chosen.only)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
