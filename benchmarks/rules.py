"""Does every rule recognise its case, and does it gain what it promises? Programs before and after the fix, and tuned ones.

    python benchmarks/rules.py [--only TEXT] [--device cuda|cpu] [--keep DIR] [--out DIR]
    python benchmarks/rules.py --rate DIR          # what --keep left, with the code as it is now; also from a .tar

`benchmarks/rules/` has a program for each rule, `before()` and `after()` the fix. Both are timed in turns, with CUDA events
over steady steps, and recorded by PyTorch's profiler; the recording gets a report with the times that were measured, as
`llm-perf profile` has them. A rule holds if the program before gets its fix, the one after does not, and what was
predicted is within a factor of 1.5 of what was measured. The programs of `tuned.py` must get no fix of the list.
Results go to benchmarks/results/rules-h200.{json,md}.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import gc
import hashlib
import importlib.util
import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src")]
from llm_perf_opt.version import __version__  # noqa: E402
from provenance import commit  # noqa: E402

PROGRAMS = ROOT / "benchmarks" / "rules"
RESULTS = ROOT / "benchmarks" / "results"
TIMES = "times.json"
STEP = "step"
RESULT = "rules-h200"
FACTOR = 1.5
NOT_MEASURED = "`comm.exposed` needs two GPUs, `gpu.clocks` the right to set clocks"
_WARM_UP = 3
_RECORDED = 5
_ROUNDS = 5
_ROUND_S = 0.08
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
        found[name] |= {"seconds": round(time.monotonic() - began, 1), "source": _source(name)}
        print(name, found[name], flush=True)
    device = torch.cuda.get_device_name() if at.gpu else "cpu"
    head = {"torch": torch.__version__, "device": device, "commit": commit()}
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


def _source(name: str) -> str:
    """Of which text a program was measured: results of another one are told apart."""
    file = PROGRAMS / f"{name}.py" if not name.startswith("tuned-") else PROGRAMS.parent / "tuned.py"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


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


# -- what the product says of it ----------------------------------------------------------------------


def rate(folder: Path) -> dict[str, Any]:
    """Reports of what was measured and recorded, and whether each rule holds."""
    known = json.loads((folder / TIMES).read_text(encoding="utf-8"))
    listed = {_constant(file, "RULE") for file in PROGRAMS.glob("*.py")}
    rules, tuned = [], []
    for name, times in known["programs"].items():
        measured = [variant for variant in ("before", "after", "tuned") if variant in times]
        variants = [variant for variant in measured if (folder / f"{name}.{variant}.json.gz").exists()]
        if measured and not variants:
            continue  # of the recordings of the repository, not all could be kept
        fixes = {variant: _fixes(folder, name, variant, times[variant]["ms"]) for variant in variants}
        if "tuned" in fixes:
            tuned.append({"name": name, "ms": times["tuned"]["ms"], "fixes": _of(fixes["tuned"], listed)})
        else:
            row = _rule_row(name, times, fixes, listed)
            rules.append(row | {"changed_since": times["source"] != _source(name)})
    head = {"torch": known["torch"], "device": known["device"], "recorded_with": known["commit"]}
    return {**head, **_summary(rules, tuned), "rules": rules, "tuned": tuned}


def _fixes(folder: Path, name: str, variant: str, milliseconds: float) -> dict[str, dict[str, Any]]:
    """The fixes of the step: what each is said to gain, in ms."""
    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.api.reporting import make_report

    trace, times = folder / f"{name}.{variant}.json.gz", folder / f"{name}.{variant}.measured.json"
    times.write_text(_as_measured(milliseconds), encoding="utf-8")
    answer = make_report([str(trace), str(times)], ReportOptions(), quiet=True).answer
    return {
        fix.rule: {"gain": fix.gain_ns / 1e6, "interval": [ns / 1e6 for ns in fix.gain_interval_ns or ()]}
        for fix in answer.fixes_of(STEP)
    }


def _as_measured(milliseconds: float, steps: int = 20) -> str:
    """The time of a step as `llm-perf measure` would have written it."""
    from llm_perf_opt.readers.open import MEASURED
    from llm_perf_opt.regions.columns import UNKNOWN_HERE

    each = round(milliseconds * 1e6)
    rows = [[0, 0, i * each, (i + 1) * each, i * each, (i + 1) * each, *[UNKNOWN_HERE] * 2] for i in range(steps)]
    process = {"run": 0, "pid": 1, "names": [["", STEP]], "once": [], "uuids": [], "rows": rows}
    return f'{MEASURED} "version": 2, "gpus": [], "processes": {json.dumps([process])}}}\n'


def _of(fixes: dict[str, Any], listed: Collection[str]) -> dict[str, float]:
    return {rule: fix["gain"] for rule, fix in fixes.items() if rule in listed}


def _rule_row(name: str, times: dict[str, Any], fixes: dict[str, Any], listed: set[str]) -> dict[str, Any]:
    file = PROGRAMS / f"{name}.py"
    rule, also = _constant(file, "RULE"), _constant(file, "ALSO") or ()
    row: dict[str, Any] = {"name": name, "rule": rule}
    if "problem" in times:
        return row | {"problem": times["problem"]}
    before, after = times["before"]["ms"], times["after"]["ms"]
    found, measured = fixes.get("before", {}).get(rule), before - after
    row |= {"before_ms": before, "after_ms": after, "measured_ms": measured, "recognised": found is not None}
    row["not_stored"] = [variant for variant in ("before", "after") if variant not in fixes]
    row["predicted_ms"], row["interval_ms"] = (found["gain"], found["interval"]) if found else (None, None)
    ratio = found["gain"] / measured if found and measured > 0 else None
    row |= {"ratio": ratio, "within": ratio is not None and 1 / FACTOR <= ratio <= FACTOR}
    row["before_others"] = _of(fixes.get("before", {}), listed - {rule, *also})
    row["after_wrong"] = _of(fixes.get("after", {}), listed - {*also})
    return row


def _constant(file: Path, name: str) -> Any:
    """A constant of a program, without running it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    return None


def _summary(rules: Sequence[dict[str, Any]], tuned: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "programs": len(rules),
        "recognised": sum(bool(row.get("recognised")) for row in rules),
        "within_factor": sum(bool(row.get("within")) for row in rules),
        "fixed_with_fixes": sum(bool(row.get("after_wrong")) for row in rules),
        "tuned_with_fixes": sum(bool(row["fixes"]) for row in tuned),
    }


def write(found: dict[str, Any], out: Path) -> None:
    head = {
        "llm_perf_opt": __version__,
        "commit": commit(),
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    content = json.dumps({**head, **found}, indent=1)
    (out / f"{RESULT}.json").write_text(content + "\n", encoding="utf-8")
    (out / f"{RESULT}.md").write_text(_page({**head, **found}), encoding="utf-8")


def _page(found: dict[str, Any]) -> str:
    rules, tuned = found["rules"], found["tuned"]
    lines = [
        "# Fix rules: what they promise beside what mending gains",
        "",
        f"`python benchmarks/rules.py`, {found['measured']}, {found['device']}, torch {found['torch']}, llm-perf "
        f"{found['llm_perf_opt']}, commit `{found['commit']}`; timed and recorded with commit `{found['recorded_with']}`.",
        "",
        f"Of {len(rules)} programs, {found['recognised']} are recognised; the gain is within a factor of {FACTOR} of the "
        f"measured one for {found['within_factor']}. {found['fixed_with_fixes']} of the mended programs and "
        f"{found['tuned_with_fixes']} of {len(tuned)} well-tuned ones get a fix of the list.",
        "",
        "| rule | before, ms | after, ms | gain measured, ms | predicted, ms | predicted / measured | recognised | mended: fixes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rules:
        if "problem" in row:
            lines.append(f"| `{row['rule']}` | – | – | – | – | – | **{row['problem'][:80]}** | – |")
            continue
        low_high = " ({:.2f} to {:.2f})".format(*row["interval_ms"]) if row["interval_ms"] else ""
        predicted = "–" if row["predicted_ms"] is None else f"{row['predicted_ms']:.2f}{low_high}"
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}" + ("" if row["within"] else " **no**")
        wrong = ", ".join(f"`{rule}` {gain:.2f}" for rule, gain in row["after_wrong"].items()) or "none"
        if "after" in row["not_stored"]:
            wrong = "not stored"
        numbers = (f"{row[key]:.2f}" for key in ("before_ms", "after_ms", "measured_ms"))
        changed = " (the program has changed since)" if row["changed_since"] else ""
        cells = [
            f"`{row['rule']}`{changed}",
            *numbers,
            predicted,
            ratio,
            "yes" if row["recognised"] else "**no**",
            wrong,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"Not measured: {NOT_MEASURED}.", "", "| well tuned | ms | fixes |", "|---|---|---|"]
    for row in tuned:
        wrong = ", ".join(f"`{rule}` {gain:.2f}" for rule, gain in row["fixes"].items()) or "none"
        lines.append(f"| {row['name'].removeprefix('tuned-')} | {row['ms']:.2f} | {wrong} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name has this text")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", type=Path, help="where times and recordings go; they are removed otherwise")
    parser.add_argument("--rate", type=Path, metavar="DIR|TAR", help="measure nothing: rate what --keep left there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    if chosen.rate is not None and chosen.rate.is_file() and chosen.out == RESULTS:
        parser.error("those of the repository are only some of the recordings behind rules-h200: give --out")
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.rate or chosen.keep or Path(scratch)
        if chosen.rate is not None and chosen.rate.is_file():
            folder = Path(scratch)
            with tarfile.open(chosen.rate) as tar:
                tar.extractall(folder, filter="data")
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.rate is None:
            measure(folder, chosen.device, chosen.only)
        found = rate(folder)
    write(found, chosen.out)
    print({key: value for key, value in found.items() if key not in ("rules", "tuned")})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
