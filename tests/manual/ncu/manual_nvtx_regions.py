"""The whole path on a GPU with three regions, checked: python tests/manual/ncu/manual_nvtx_regions.py [FOLDER]

Profiles itself with deep_profile_runner. The program has ranges A, B and, inside A, A::A1, and a sort outside
of all of them. Checked is what a wrong filter or a wrong roll-up would break: three regions with a section
text each, no kernel from outside, and parents that equal their own part plus their children within 1 %.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

REGIONS = {"A", "A/A::A1", "B"}
OUTSIDE = "sort"  # in the name of every kernel that the program launches outside
SECTIONS = "SpeedOfLight,MemoryWorkloadAnalysis,Occupancy"
TITLES = ("GPU Speed Of Light Throughput", "Memory Workload Analysis", "Occupancy")
NEAR = 0.01


def program() -> None:
    """What is profiled."""
    import torch

    x = torch.randn(512, 1024, device="cuda")
    first, second = (torch.nn.Linear(1024, 1024, device="cuda") for _ in range(2))
    with torch.inference_mode():
        for _ in range(3):
            torch.sort(x)
            with torch.cuda.nvtx.range("A"):
                y = torch.relu(first(x))
                with torch.cuda.nvtx.range("A::A1"):
                    y = second(y).softmax(-1)
            torch.sort(x)
            with torch.cuda.nvtx.range("B"):
                y = first(y) + 1
    torch.cuda.synchronize()


def check(run: Path) -> list[str]:
    """What is wrong with the run directory; nothing, if all is well."""
    import llm_perf_opt

    wrong = []
    scope = llm_perf_opt.load(run).scope("aggregate")
    regions = {region.key: region for region in scope.regions}
    if set(regions) != REGIONS:
        return [f"regions are {sorted(regions)}, not {sorted(REGIONS)}"]
    sections = (run / "ncu" / "sections_report.txt").read_text(encoding="utf-8")  # ncu's own page
    wrong += [f"sections_report.txt has no section {title}" for title in TITLES if f"Section: {title}" not in sections]
    for key in REGIONS:
        text = (run / "ncu" / "regions" / regions[key].folder / "sections.txt").read_text(encoding="utf-8")
        if not regions[key].sections or text.count("Section: ") < len(TITLES):
            wrong.append(f"{key} has no sections")
        if outside := [k.short_name for k in regions[key].kernels if OUTSIDE in k.kernel_name.lower()]:
            wrong.append(f"{key} holds kernels from outside: {outside}")
    raw = (run / "ncu" / "raw.csv").read_text(encoding="utf-8")
    if OUTSIDE in raw.lower().replace("sorted", ""):
        wrong.append("ncu profiled a kernel from outside")
    parent, child = regions["A"], regions["A/A::A1"]
    pairs = {"kernels": (parent.inclusive.kernel_count, parent.exclusive.kernel_count + child.inclusive.kernel_count)}
    times = (parent.inclusive.gpu_time_ns, parent.exclusive.gpu_time_ns, child.inclusive.gpu_time_ns)
    assert None not in times
    pairs["GPU time"] = (times[0], times[1] + times[2])  # type: ignore[operator]
    for name, metric in parent.inclusive.metrics.items():
        if metric.rollup == "sum" and name in child.inclusive.metrics:
            own = parent.exclusive.metrics[name].value if name in parent.exclusive.metrics else 0.0
            pairs[name] = (metric.value, own + child.inclusive.metrics[name].value)
    if len(pairs) < 4:
        wrong.append(f"only {sorted(pairs)} could be compared")
    for name, (whole, parts) in pairs.items():
        if abs(whole - parts) > NEAR * abs(whole):
            wrong.append(f"{name}: A is {whole:,}, its own part and A::A1 are {parts:,}")
    print(f"compared {len(pairs)} values of A with its parts")
    return wrong


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "run"
    words = [
        f"pipeline.workload.command=[{sys.executable},{Path(__file__).resolve()},--program]",
        "pipeline.ncu.enable=true",
        "pipeline.ncu.ncu_cli.replay_mode=kernel",
        f"pipeline.ncu.ncu_cli.sections=[{SECTIONS}]",
        "pipeline.ncu.ncu_cli.nvtx.include=[A,B]",
        f"hydra.run.dir={folder}",
    ]
    done = subprocess.run([sys.executable, "-m", "llm_perf_opt.runners.deep_profile_runner", *words])
    if done.returncode:
        print(f"the run ended with {done.returncode}")
        return done.returncode
    wrong = check(folder)
    print("\n".join(wrong) if wrong else "all is well")
    return bool(wrong)


if __name__ == "__main__":
    if "--program" in sys.argv:
        program()
    else:
        sys.exit(main())
