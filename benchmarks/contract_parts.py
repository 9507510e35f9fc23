"""The parts of `contract_commands.py`: each command of the contract, and what its report must hold.

Commands are those of the contract to the letter; the built-in small model has no kernel called matmul or
my_exact_kernel_name on an H200, so each filter has a second part with the name of a kernel that the program does launch.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

import contract_checks as check

ROOT = Path(__file__).resolve().parents[1]
MANUAL = ROOT / "tests" / "manual"
DEEP, STAGE1 = (f"llm_perf_opt.runners.{name}" for name in ("deep_profile_runner", "llm_profile_runner"))
LLM_PERF = ["python", "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
CLI = "pipeline.ncu.ncu_cli"
SECTIONS = f"{CLI}.sections=[SpeedOfLight,MemoryWorkloadAnalysis,Occupancy"
SECTION_TITLES = ("GPU Speed Of Light Throughput", "Memory Workload Analysis", "Occupancy")
PAGES = "dataset.subset_filelist=datasets/omnidocbench/subsets/dev-3.txt"
LIGHT = [
    "device=cuda:0",
    "pipeline.torch_profiler.enable=false",
    "pipeline.static_analysis.enable=false",
    PAGES,
    "dataset.sampling.num_epochs=1",
    "dataset.sampling.num_samples_per_epoch=1",
    "dataset.sampling.randomize=false",
    "infer.max_new_tokens=64",
]
Problems = Iterator[str]


@define
class Bench:
    """Where the parts run, and what they learn from each other."""

    folder: Path
    nsys: str
    ncu: str
    environment: dict[str, str]
    kernels: dict[str, list[str]] = field(factory=dict)  # region -> full names of its kernels, the heaviest first
    finding: threading.Lock = field(factory=threading.Lock)

    def folder_of(self, part: Part) -> Path:
        folder = self.folder / part.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "datasets").symlink_to(ROOT / "datasets")
        return folder

    def run(self, argv: Sequence[str], folder: Path) -> None:
        words = [sys.executable if word == "python" else word for word in argv]
        subprocess.run(words, cwd=folder, env=self.environment, check=True, capture_output=True, timeout=300)

    def report(self, folder: Path, *recordings: str) -> check.Report:
        """What `llm-perf report` makes of recordings."""
        self.run([*LLM_PERF, "report", *recordings, "--out", "looked-at", "--format", "json"], folder)
        return check.load(folder / "looked-at")

    def heaviest(self, region: str) -> str:
        """The full name of the kernel that takes the most time in a region of the built-in model."""
        return self.ranked(region)[0]

    def ranked(self, region: str) -> list[str]:
        """The full names of all its kernels, those that take the most time first."""
        with self.finding:
            if region not in self.kernels:
                run = self.folder / "kernels"
                self.run(["python", "-m", DEEP, "run.mode=light", f"hydra.run.dir={run}"], self.folder)
                for found in check.regions(check.load(run)):
                    ranked = sorted(found["kernels"], key=lambda kernel: -(kernel["total_ms"] or 0))
                    if ranked:
                        self.kernels[found["name"]] = [kernel["kernel_name"] for kernel in ranked]
            return self.kernels[region]


Argv = Callable[[Bench], list[str]]
Check = Callable[[Bench, Path, list[Path]], Problems]


@define
class Part:
    """One command, about how long it takes on an H200, and what is looked at."""

    name: str
    about: str
    seconds: int
    argv: Argv
    check: Check
    keeps_output: bool = False  # what it prints is a result


def deep(*words: str) -> Argv:
    return lambda _: ["python", "-m", DEEP, "pipeline.ncu.enable=true", *words]


def profile(*words: str) -> Argv:
    return lambda _: [*LLM_PERF, "profile", "--out", "run", *words]


def report_of(runs: list[Path]) -> check.Report:
    (run,) = runs
    return check.load(run)


def with_counters(*more: Callable[[check.Report], Problems]) -> Check:
    """Regions with counters, values in range, and what else is asked of the report."""

    def look(_: Bench, __: Path, runs: list[Path]) -> Problems:
        report = report_of(runs)
        for one in (check.timed, check.counted, check.in_range, *more):
            yield from one(report)

    return look


def all_of(*checks: Check) -> Check:
    def look(bench: Bench, folder: Path, runs: list[Path]) -> Problems:
        for one in checks:
            yield from one(bench, folder, runs)

    return look


def sections(*titles: str) -> Check:
    return lambda _, __, runs: check.sections_shown(runs[0], *titles)


def launches(pattern: str = "", most: int | None = None) -> Check:
    return lambda _, __, runs: check.kernels_match(check.results_of(runs[0]), pattern, most)


def named(*patterns: str) -> Callable[[check.Report], Problems]:
    return lambda report: check.named_only(report, *patterns)


def by(source: str) -> Callable[[check.Report], Problems]:
    return lambda report: check.measured_by(report, source)


def peaks_of_ncu(report: check.Report) -> Problems:
    """Bandwidth and the peaks of the tensor cores come from ncu, and are near those of the data sheet."""
    for gpu in report["hardware"]:
        notes = " ".join(gpu["notes"])
        yield from (f"{what} is not ncu's" for what in ("bandwidth", "tensor_bf16") if what not in notes)


def no_such_kernel(_: Bench, __: Path, runs: list[Path]) -> Problems:
    yield from check.nothing_matched(report_of(runs), "NO_MATCHING_KERNELS")


def of_heaviest(region: str) -> Check:
    """Only launches of that kernel were profiled."""
    return lambda bench, _, runs: check.kernels_match(
        check.results_of(runs[0]), f"^{re.escape(bench.heaviest(region))}$"
    )


def regex_of_heaviest(bench: Bench) -> str:
    """A pattern in the form of the contract, `regex:.*NAME.*`: the longest word of the kernel's name."""
    words = re.findall(r"[A-Za-z_]{4,}", bench.heaviest("decode").split("<")[0].split("(")[0])
    return f".*{max(words, key=len)}.*"


def matching_launches(bench: Bench, _: Path, runs: list[Path]) -> Problems:
    yield from check.kernels_match(check.results_of(runs[0]), regex_of_heaviest(bench))


def timeline_alone(bench: Bench, folder: Path, _: list[Path]) -> Problems:
    yield from check.timed(bench.report(folder, "X.nsys-rep"))


def gemv_launch(bench: Bench, folder: Path, _: list[Path]) -> Problems:
    """The launch of a gemv in the report; without such a kernel ncu says so, and the timeline has none."""
    if (folder / "Y.ncu-rep").exists():
        yield from launch_in_report(bench, folder, "gemv")
    elif "No kernels were profiled" not in (folder / "output").read_text(errors="replace"):
        yield "ncu left nothing and does not say why"
    elif any("gemv" in name for region in ("prefill", "decode") for name in bench.ranked(region)):
        yield "there is a gemv in the program, and ncu did not find it"


def hot_launch(bench: Bench, folder: Path, _: list[Path]) -> Problems:
    yield from launch_in_report(bench, folder, f"^{re.escape(bench.heaviest('decode'))}$")


def launch_in_report(bench: Bench, folder: Path, pattern: str) -> Problems:
    """One launch of the right kernel, every number of it in the report."""
    file = folder / "Y.ncu-rep"
    actions = check.read_ncu_rep(file, file.name).actions
    yield from check.kernels_match(actions, pattern, 1)
    yield from check.one_launch_shown(bench.report(folder, file.name), actions)


def both_inputs(_: Bench, __: Path, runs: list[Path]) -> Problems:
    (run,) = runs
    yield from check.stage_timings(run)
    metrics: dict[str, Any] = json.loads((run / "torch_profiler" / "metrics.json").read_text(encoding="utf-8"))
    if metrics["inputs"] != 2:
        yield f"{metrics['inputs']} of 2 inputs were run"


def stage1_run(_: Bench, __: Path, runs: list[Path]) -> Problems:
    (run,) = runs
    yield from check.stage_timings(run)


def sweep(_: Bench, __: Path, runs: list[Path]) -> Problems:
    first, second = (check.load(run) for run in runs)
    for report in (first, second):
        yield from check.timed(report)
    for one in (check.counted, check.in_range):
        yield from one(first)
    yield from ("the light job has counters" for region in check.regions(second) if check.counters_of(region))


def said_well(_: Bench, folder: Path, __: list[Path]) -> Problems:
    """A checker of its own looked at the run."""
    lines = (folder / "output").read_text(errors="replace").splitlines()
    if not lines or lines[-1] != "all is well":
        yield "its checker is not content"


def inputs_file(bench: Bench) -> Path:
    file = bench.folder / "inputs.yaml"
    file.write_text("- prompt: Where does the time go?\n- prompt: And the bytes?\n", encoding="utf-8")
    return file


def manifest(bench: Bench) -> list[str]:
    words = ["repeats=1", "profiling.activities=[cpu,cuda]", "+run.mode=deep", f"+inputs.manifest={inputs_file(bench)}"]
    return [*_STAGE1, "device=cuda:0", *words, "hydra.run.dir=runs/manifest", "hydra.job.chdir=true"]


def ncu_of(kernel: Callable[[Bench], str]) -> Argv:
    chosen = ["--launch-skip", "2", "--launch-count", "1", "-o", "Y"]
    return lambda bench: [
        *(bench.ncu, "--target-processes", "all", "--kernel-name-base", "demangled"),
        *("--kernel-name", kernel(bench), *chosen, *_STAGE1, *LIGHT),
    ]


_STAGE1 = ["python", "-m", STAGE1]
_PROGRAM = f"pipeline.workload.command=[{sys.executable},{MANUAL / 'ncu' / 'replayable.py'}]"
_PLAIN = str(MANUAL / "annotate" / "plain.py")
_PRESET = "profiling/ncu@pipeline.ncu"
_NOW = "hydra.run.dir=runs/nsys/${now:%Y%m%d-%H%M%S}"
_ALL, _DECODE, _PREFILL = (f"{CLI}.nvtx.include={pattern}" for pattern in ("LLM@*", "decode*", "prefill*"))
_DEMANGLED = f"{CLI}.kernel_name_base=demangled"

# fmt: off
PARTS = (
    # -- section 3 of the contract, to the letter
    Part("range", "range replay of LLM@*, four sections", 230,
         deep(f"{CLI}.replay_mode=range", _ALL, f"{SECTIONS},SchedulerStats]"),
         all_of(with_counters(named("^LLM@")), sections(*SECTION_TITLES, "Scheduler Statistics"))),
    Part("app-range", "application-range replay of prefill*", 60,
         deep(f"{CLI}.replay_mode=app-range", _PREFILL), with_counters(named("prefill"), by("range replay"))),
    Part("kernel", "kernel replay of decode*", 75,
         deep(f"{CLI}.replay_mode=kernel", _DECODE), with_counters(named("decode"))),
    Part("exact-kernel", "an exact kernel name that the program does not have", 60,
         deep(_ALL, f"{CLI}.kernel_name=my_exact_kernel_name", _DEMANGLED), no_such_kernel),
    Part("matmul-kernels", "kernels called matmul, which the program does not have", 60,
         deep(_DECODE, f"{CLI}.kernel_name=regex:.*matmul.*", _DEMANGLED, f"{SECTIONS}]"), no_such_kernel),
    Part("nsys", "a timeline of stage 1, taken by hand", 40,
         lambda bench: [bench.nsys, "profile", "--trace=cuda,osrt", "-o", "X", *_STAGE1, _NOW, *LIGHT], timeline_alone),
    Part("ncu", "the third launch of a gemv, taken by hand", 50, ncu_of(lambda _: "regex:.*gemv.*"), gemv_launch),
    Part("manifest", "stage 1 over a list of inputs", 25, manifest, both_inputs),
    Part("torch-profiler", "stage 1 with a preset of the torch profiler", 25,
         lambda _: [*_STAGE1, "profiling=@profiling/torch/torch-profiler.min", "+run.mode=deep", "hydra.run.dir=runs/preset"],
         stage1_run),
    Part("sweep", "a deep and a light job", 110, lambda _: ["python", "-m", DEEP, "-m", "run.mode=deep,light"], sweep),
    # -- filters and replay modes on what allows them
    Part("exact-kernel-found", "the exact name of the heaviest kernel", 75,
         lambda bench: deep(_ALL, f"{CLI}.kernel_name={bench.heaviest('decode')}", _DEMANGLED, f"{CLI}.launch_count=4")(bench),
         all_of(with_counters(), of_heaviest("decode"), launches(most=4))),
    Part("matching-kernels", "a pattern that fits the heaviest kernel, three sections", 90,
         lambda bench: deep(_DECODE, f"{CLI}.kernel_name=regex:{regex_of_heaviest(bench)}", _DEMANGLED, f"{SECTIONS}]",
                            f"{CLI}.launch_count=6")(bench),
         all_of(with_counters(named("decode")), matching_launches, launches(most=6), sections(*SECTION_TITLES))),
    Part("hot-kernel", "one launch of the heaviest kernel, taken by hand", 80,
         ncu_of(lambda bench: bench.heaviest("decode")), hot_launch),
    Part("range-allowed", "range replay of a program that allows it", 60,
         deep(_PROGRAM, f"{CLI}.replay_mode=range", f"{CLI}.nvtx.include=block", f"{CLI}.sections=[SpeedOfLight]"),
         with_counters(check.as_asked, by("range replay"), named("block"))),
    Part("application-allowed", "application replay of a program that allows it", 100,
         deep(_PROGRAM, f"{CLI}.replay_mode=application", f"{CLI}.nvtx.include=block", f"{CLI}.sections=[SpeedOfLight]"),
         with_counters(check.as_asked, named("block"))),
    # -- presets
    Part("quick", "preset quick", 75, deep(f"{_PRESET}=quick"), all_of(with_counters(), launches(most=5))),
    Part("standard", "preset standard, with peaks from ncu's roofline metrics", 90,
         deep(f"{_PRESET}=standard", "hardware.peaks=ncu"), all_of(with_counters(peaks_of_ncu), launches(most=20))),
    Part("comprehensive", "preset comprehensive; a range cannot have all of its metrics", 100,
         deep(_PROGRAM, f"{_PRESET}=comprehensive"),
         all_of(with_counters(), launches(most=100), sections("GPU Speed Of Light Throughput", "Warp State Statistics"))),
    # -- any program
    Part("annotate-verify", "counters of a program whose stages are marked from outside, against regions as wholes", 130,
         profile("--annotate", "stages", "--verify", "--", "python", _PLAIN),
         with_counters(named("generate", "^CCCL@"), check.verified)),
    Part("no-ranges", "counters of a program that has no ranges", 90, profile("--", "python", _PLAIN),
         with_counters(check.stages_counted)),
    Part("manual-ncu", "tests/manual/ncu", 70, lambda _: ["python", str(MANUAL / "ncu" / "manual_nvtx_regions.py"), "run"],
         said_well, keeps_output=True),
    # -- three models
    Part("model-decoder", "a decoder of 3.2 billion parameters", 110,
         deep("model=hf_causal_lm", "infer.prompt_tokens=2048", "infer.max_new_tokens=17"),
         with_counters(check.work_by_formula)),
    Part("model-ocr", "a vision-language model", 110, deep("model=deepseek_ocr", PAGES, "infer.max_new_tokens=17"),
         with_counters(check.work_by_formula)),
    Part("model-resnet", "a convolutional network", 70, deep("model=dummy_shallow_resnet"), with_counters()),
)
# fmt: on
