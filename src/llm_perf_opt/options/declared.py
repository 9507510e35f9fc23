"""The declarations: options of the command line first, in the order of its help, then keys that only runners have.

To add an option, declare it here under a name of its own and with the type of its value, as in `LAUNCH`; where it
acts, `request.value(LAUNCH)` has it. Options with a place in the request (`to`) are those that several options decide,
or that callers from Python set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.formats import FORMATS
from llm_perf_opt.options.of_jobs import CHOSEN_RANKS, COUNTER_RANK
from llm_perf_opt.options.of_trials import LEVER_NAMES, TRIAL_BATCH, TRIAL_BUDGET, TRIAL_OUTPUT, TRIAL_RUNS, TRY
from llm_perf_opt.options.option import Kind, Option
from llm_perf_opt.options.serving import SERVING

_NCU, _NSYS, _CLI = "pipeline.ncu.", "pipeline.nsys.", "pipeline.ncu.ncu_cli."
_PROFILE = ("profile", "plan")
_RUN = (*_PROFILE, "measure", "try")  # verbs that run a program
_BUILD = (*_PROFILE, "report")  # verbs that build a whole report
_READ = (*_BUILD, "ranges")
LEVELS = ("time", "roofline", "bound", "stalls", "full")  # of metrics; each holds the ones before it

# Options that others decide with, or that belong together (see `request.py`).
TOP_N_KERNELS: Option[int] = Option(
    key="run.top_n_kernels", kind="number", default=30,
    help="How many kernels the lists show. Any other number than 30 also limits counters to that many of the heaviest kernels; 0: all.",
)  # fmt: skip
KERNEL: Option[str | None] = Option(
    flag="--kernel", key=f"{_CLI}kernel_name", kind="kernel", metavar="NAME", verbs=_PROFILE, to="counters.options.kernel_name",
    help="An exact kernel name, or regex:…",
    flag_help="profile only one launch of this kernel: its exact name, or regex:… matched against the full name",
)  # fmt: skip
LAUNCH: Option[int | None] = Option(
    flag="--launch", kind="count", metavar="N", verbs=_PROFILE, instead=f"{_CLI}launch_skip",
    help="With --kernel: which launch to profile (default 1).",
)  # fmt: skip
NSYS_ENABLE: Option[bool | None] = Option(
    key=f"{_NSYS}enable", kind="switch",
    help=f"Record a timeline with nsys; if not set: yes, unless {_NCU}strategy is as_given.",
)  # fmt: skip
NCU_ENABLE: Option[bool | None] = Option(
    key=f"{_NCU}enable", kind="switch", help="Collect counters with ncu; if not set: only if run.mode is deep."
)
STRATEGY: Option[str] = Option(
    key=f"{_NCU}strategy", default="auto", choices=("auto", "as_given"), to="counters.strategy",
    help="auto: choose the launches worth profiling from the timeline. as_given: pass only ncu_cli to ncu.",
)  # fmt: skip
MODE: Option[str] = Option(
    key="run.mode", default="deep", choices=("light", "deep"),
    help="light: stage timings and the timeline only. deep: also counters, PyTorch's profiler and static analysis.",
)  # fmt: skip
RESUME: Option[str | None] = Option(
    flag="--resume", metavar="RUN", verbs=("profile",), on_resume=True,
    help="Continue a run that failed, was interrupted or was killed; only missing steps are run.",
)  # fmt: skip
INSTANCES: Option[int | None] = Option(
    flag="--instances", kind="count", metavar="N", verbs=("profile",),
    help="Steady instances of each repeated stage to record if the program runs much longer (default: chosen by how long they take).",
)  # fmt: skip
# Every verb has these; they decide how an answer is shown, not what it is.
SHOWING: tuple[Option[bool], ...] = (
    Option(flag="--json", kind="switch", default=False, help="Print one JSON object instead of text."),
    Option(
        flag="--quiet", short="-q", kind="switch", default=False,
        help="Print only the result and errors: no progress, no explanations.",
    ),
)  # fmt: skip

_COMMAND_LINE: tuple[Option[Any], ...] = (
    RESUME,
    Option(
        flag="--out", metavar="DIR", verbs=_RUN, to="out", instead="hydra.run.dir",
        help="Run directory (default: tmp/profile-output/<date-time>).",
    ),
    Option(
        flag="--annotate", key="pipeline.annotate.mode", default="off", choices=("off", "stages", "modules"),
        verbs=_RUN, to="annotate.mode",
        help="For a PyTorch program without NVTX ranges, mark its stages (prefill, decode), or its stages and modules.",
    ),
    Option(
        flag="--annotate-depth", key="pipeline.annotate.depth", kind="count", default=3, metavar="N",
        verbs=_RUN, to="annotate.depth", help="How many levels of modules to mark.",
    ),
    Option(
        flag="--runs", kind="count", default=1, metavar="N", verbs=("measure",), to="measure.runs",
        help="How often to run the program.",
    ),
    *SERVING,
    Option(
        flag="--no-measure", kind="switch", default=False, given=False, verbs=("profile",), to="measure.enable",
        help="Skip the run without a profiler; times are then those of the profiled run.",
    ),
    CHOSEN_RANKS,
    COUNTER_RANK,
    INSTANCES,
    TRY,
    LEVER_NAMES,
    TRIAL_RUNS,
    TRIAL_BUDGET,
    TRIAL_OUTPUT,
    TRIAL_BATCH,
    Option(flag="--list", kind="switch", default=False, verbs=("try",), help="List all levers and exit."),
    Option(
        flag="--timeout", kind="seconds", metavar="S", verbs=("measure", "try"), to="measure.timeout_s",
        help="Stop a run of the program after S seconds; what it timed by then is kept.",
    ),
    Option(
        flag="--no-counters", kind="switch", default=False, given=False, verbs=_PROFILE, to="counters.enable",
        instead="run.mode=light", help="Record only the timeline.",
    ),
    Option(
        flag="--budget", key=f"{_NCU}budget", kind="duration", metavar="TIME", verbs=_PROFILE, to="counters.budget_s",
        help="Time limit for all counter captures together, such as 60s or 2m (default: as long as a good result takes).",
    ),
    Option(
        flag="--level", key=f"{_NCU}level", default="roofline", choices=LEVELS, verbs=_PROFILE, to="counters.level",
        help="How much to measure for each launch if no metrics, sections or set are given; roofline: time, bytes, tensor operations.",
    ),
    Option(
        flag="--launches", key=f"{_NCU}launches", kind="count", default=3, metavar="N", verbs=_PROFILE,
        to="counters.launches", help="Launches to profile for each kernel and launch configuration.",
    ),
    Option(
        flag="--metrics", key=f"{_CLI}metrics", kind="list", default=[], metavar="LIST", verbs=_PROFILE,
        to="counters.options.metrics", help="ncu metrics to collect instead of a level; those that fit into one pass are cheapest.",
    ),
    KERNEL,
    LAUNCH,
    Option(
        flag="--sample", key=f"{_NCU}sample", default="all", metavar="WHICH", verbs=_PROFILE, to="counters.sample",
        help="Which instances of a repeated range to profile as a whole: all, first, middle, last, every:N.",
    ),
    Option(
        flag="--replay-mode", key=f"{_CLI}replay_mode", choices=("kernel", "application", "range", "app-range"),
        verbs=_PROFILE, to="counters.options.replay_mode",
        help="ncu's replay mode (default: kernel); if the program does not allow it, the next one is tried.",
    ),
    Option(
        flag="--no-windows", key=f"{_NCU}windows", kind="switch", default=True, verbs=_PROFILE, to="counters.windows",
        help="If possible, the program itself switches ncu on around the planned launches only (capture windows).",
        flag_help="do not inject code into the profiled program; by default, injected code switches ncu on around the planned launches and ends the program after the last of them",
    ),
    Option(
        flag="--no-traffic", kind="switch", default=False, given=0, verbs=_PROFILE, to="timeline.traffic_hz",
        instead=f"{_NSYS}traffic_hz=0",
        help="Do not sample the memory traffic of the whole GPU; the bytes of a region are then the sum over its kernels.",
    ),
    Option(
        flag="--no-lines", key=f"{_NSYS}lines", kind="switch", default=True, verbs=_PROFILE, to="timeline.lines",
        help="Record which source line launches each kernel, and which line the host is in while the GPU waits.",
        flag_help="do not record source lines (which line launches each kernel, and which line the host is in while the GPU waits)",
    ),
    Option(
        flag="--run-to-end", key=f"{_NCU}run_to_end", kind="switch", default=False, verbs=_PROFILE,
        to="counters.run_to_end",
        help="Let the program run to its end under the profilers; by default it is ended as soon as they have what they need.",
    ),
    Option(
        flag="--verify", key=f"{_NCU}verify", kind="switch", default=False, verbs=_PROFILE, to="counters.verify",
        help="Also measure whole regions by range replay, and show them next to the estimates (runs the program once per pass).",
    ),
    Option(
        flag="--no-fallback", key=f"{_NCU}fallback", kind="switch", default=True, verbs=_PROFILE,
        to="counters.fallback",
        help="If the program does not allow a replay mode, try the next one: range, app-range, kernel.",
        flag_help="do not try another replay mode",
    ),
    Option(
        flag="--max-size", key=f"{_NSYS}max_size", kind="size", default="2GB", metavar="SIZE", verbs=_PROFILE,
        to="timeline.max_bytes", on_resume=True,
        help="Stop recording the timeline when it reaches this size; 0: no limit.",
    ),
    Option(
        flag="--timeout", kind="seconds", metavar="S", verbs=_PROFILE, on_resume=True,
        to=("measure.timeout_s", "timeline.timeout_s", "counters.timeout_s"), instead=f"{_NSYS}timeout_s or {_NCU}timeout_s",
        help="Stop a step after S seconds; what it captured by then is kept.",
    ),
    Option(
        flag="--show-command", key="run.show_command", kind="switch", default=False, verbs=_RUN,
        to="show_command",
        help="Store command lines as typed, hiding only what looks like a secret; by default, every value that is not plain is hidden.",
    ),
    Option(
        flag="--timeline", metavar="FILE", verbs=("plan",), to="timeline.recording",
        help="Plan from this recording instead of making one.",
    ),
    Option(
        flag="--out", metavar="DIR", verbs=("report",), to="out",
        help="Folder for the report (default: INPUT-report in this folder; inside it for a run directory).",
    ),
    Option(
        flag="--force", kind="switch", default=False, verbs=("report",), to="force",
        help="Replace files that llm-perf did not write, and reports with more content; the output names them.",
    ),
    Option(
        flag="--force", kind="switch", default=False, verbs=("export", "demo", "compare", "runs history", "runs sweep"),
        help="Replace files that llm-perf did not write; the output names them.",
    ),
    Option(
        flag="--format", kind="list", metavar="LIST", verbs=("report",), to="formats",
        help="Comma-separated list of formats (default: all): [what there is](running.md#reports).",
        flag_help=f"comma-separated list of {', '.join(FORMATS)} (default: all)",
    ),
    Option(
        flag="--include", key=f"{_CLI}nvtx.include", kind="patterns", default=[], metavar="PAT", verbs=(*_READ, "compare"),
        to="report.include", help="Regions to profile and report: globs, A/B, DOMAIN@NAME, regex:…; for captures also ncu:…",
    ),
    Option(
        flag="--exclude", key=f"{_CLI}nvtx.exclude", kind="patterns", default=[], metavar="PAT", verbs=(*_READ, "compare"),
        to="report.exclude", help="Regions to leave out; takes precedence over include.",
    ),
    Option(
        flag="--kernel-include", key=f"{_NCU}kernels.include", kind="patterns", default=[], metavar="PAT",
        verbs=_READ, to="report.kernel_include", help="Kernels to count: globs or regex:… (default: all).",
    ),
    Option(
        flag="--kernel-exclude", key=f"{_NCU}kernels.exclude", kind="patterns", default=[], metavar="PAT",
        verbs=_READ, to="report.kernel_exclude", help="Kernels not to count; takes precedence over include.",
    ),
    Option(
        flag="--no-aggregate", key=f"{_NCU}aggregate", kind="switch", default=True, verbs=_BUILD,
        to="report.aggregate", help="Besides each process and device, report the sum over all of them.",
        flag_help="leave out the sum over all processes and devices",
    ),
    Option(
        flag="--attribution", default="auto", choices=("auto", "thread", "process"), verbs=(*_READ, "export", "compare"),
        to="report.attribution",
        help="Which ranges a launch belongs to: those of its thread, or else of its process (auto); only those of its thread, like nsys; those of its process.",
    ),
    Option(
        flag="--top", kind="count", default=30, metavar="N", verbs=_READ, to="report.top",
        instead=TOP_N_KERNELS.key, help="How many kernels to list per region.",
    ),
    Option(
        flag="--hardware", kind="assignments", default=[], metavar="NAME=VALUE", verbs=_BUILD, to="report.hardware",
        instead="hardware",
        help="Peaks of the GPU: model='H100 SXM', bandwidth=4.8TB/s, tensor_bf16=989TFLOP/s …; peaks=ncu: take them from ncu's roofline metrics.",
    ),
    Option(
        flag="--calibration", metavar="FILE", verbs=_BUILD, to="calibration",
        help="Measured peaks (default: those that llm-perf calibrate stored on this machine).",
    ),
    Option(
        flag="--strict", key=f"{_NCU}strict", kind="switch", default=False, verbs=_READ, to="strict",
        help="Exit with 6 if no region matches.",
    ),
    Option(
        flag="--out", metavar="DIR", default="llm-perf-demo", verbs=("demo",), to="out", help="Folder for the report."
    ),
    Option(
        flag="--out", metavar="FILE", verbs=("calibrate",),
        help="Where to store the result (default: $XDG_CACHE_HOME/llm-perf-opt/calibration.json, which reports use).",
    ),
    Option(
        flag="--top", kind="count", default=10, metavar="N", verbs=("show",),
        help="How many kernels, lines and counters to list.",
    ),
    Option(
        flag="--root", metavar="DIR", default=".", verbs=("mcp",),
        help="The folder that may be read; nothing outside it is opened.",
    ),
    Option(
        flag="--device", kind="number", default=0, metavar="N", verbs=("calibrate",), help="Number of the GPU."
    ),
    Option(
        flag="--no-try", kind="switch", default=False, verbs=("doctor",),
        help="Do not run a test kernel under the profilers.",
    ),
    Option(
        flag="--out", metavar="DIR", verbs=("doctor",), help="The folder that runs will be written to (default: this one)."
    ),
    Option(
        flag="--out", metavar="DIR", verbs=("scrub",), either=True,
        help="Folder for the copy (default: INPUT-scrubbed in this folder).",
    ),
    Option(
        flag="--out", metavar="DIR", default="llm-perf-compare", verbs=("compare",),
        help="Folder for compare.json, compare.md, compare.xml (JUnit) and compare.html.",
    ),
    Option(
        flag="--fail-on", choices=("worse", "unsure"), verbs=("compare",),
        help="Exit with 7 if something got worse or exceeds its budget; unsure: also with 8 if that cannot be decided.",
    ),
    Option(
        flag="--min-change", default="2%", metavar="PERCENT", verbs=("compare",),
        help="The smallest change of a time that counts, such as 2%.",
    ),
    Option(
        flag="--exact", kind="switch", default=False, verbs=("compare",),
        help="Decide by counts (launches, synchronisations, bytes) instead of times: for recordings from different machines.",
    ),
    Option(
        flag="--budgets", metavar="FILE", verbs=("compare",),
        help="Limits for regions of the new run, in a TOML file.",
    ),
    Option(
        flag="--save-baseline", metavar="FILE", verbs=("compare",),
        help="Store the last of the given runs in one small file, as a baseline for later comparisons.",
    ),
    Option(
        flag="--accept", metavar="REASON", verbs=("compare",),
        help="Accept the change: replace BASE, a baseline file, with the new run, and record this reason.",
    ),
    Option(
        flag="--learn", kind="switch", default=False, verbs=("compare",),
        help="Both runs are of the same, unchanged program: store their difference as noise.",
    ),
    Option(flag="--out", metavar="DIR", verbs=("runs history",), help="Folder for history.json and history.html."),
    Option(
        flag="--out", metavar="DIR", verbs=("runs sweep",),
        help="Folder for sweep.json, sweep.md and sweep.html (default: that of the sweep).",
    ),
    Option(
        flag="--in-place", kind="switch", default=False, verbs=("scrub",), either=True,
        help="Replace the originals with the clean files.",
    ),
    Option(flag="--keep", kind="count", metavar="N", verbs=("runs prune",), help="Keep the newest N runs."),
    Option(
        flag="--max-size", metavar="SIZE", verbs=("runs prune",),
        help="Keep as many of the newest runs as fit into this size, such as 2GB.",
    ),
    Option(
        flag="--format", choices=("xz", "gz"), default="xz", verbs=("runs compress",),
        help="xz (default) packs better, gz is faster.",
    ),
    Option(flag="--yes", kind="switch", default=False, verbs=("runs prune", "runs compress"), help="Do it, instead of only showing what would be done."),
)  # fmt: skip


def _keys(prefix: str, to: str, *rows: tuple[Any, ...]) -> list[Option[Any]]:
    """Rows of name, default, kind, help, and values where ncu has a list of its own; `to`: where all of them go."""
    return [_key(prefix, to, *row) for row in rows]


def _key(
    prefix: str, to: str, name: str, default: Any, kind: Kind, text: str, choices: tuple[str, ...] = ()
) -> Option[Any]:
    place = f"{to}.{name.replace('.', '_')}" if to else ()
    return Option(key=f"{prefix}{name}", default=default, kind=kind, help=text, choices=choices, to=place)


_COUNTERS: list[Option[Any]] = [
    NCU_ENABLE,
    STRATEGY,
    *_keys(
        _NCU,
        "counters",
        ("gating_nvtx", True, "switch", "Profile only inside the regions of nvtx.include; false: the whole program."),
        ("timeout_s", None, "seconds", "Stop ncu after this time; what it captured is kept."),
    ),
]
_NCU_CLI = _keys(
    _CLI, "counters.options",
    ("set", None, "text", "Named set of sections: basic takes 10 passes, roofline 17, full 38 on an H200."),
    ("sections", [], "list", "Section identifiers, such as [SpeedOfLight,Occupancy]."),
    ("target_processes", "all", "text", "Processes to profile; launchers such as torchrun need all.", ("all", "application-only")),
    ("nvtx.push_pop_scope", None, "text", "If not set: process if autograd or workers launch kernels.", ("thread", "process")),
    ("range_filter", None, "instances", "Instances of the matching ranges, in ncu's notation, such as ::[2-4]."),
    ("kernel_name_base", None, "text", "What kernel_name is compared with; if not set: demangled, the full name.", ("function", "demangled", "mangled")),
    ("kernel_id", None, "kernel_id", "context:stream:[regex:]name:invocation"),
    ("launch_skip", None, "number", "Matching launches to skip, counted over all kernels."),
    ("launch_count", None, "number", "Matching launches to profile before stopping."),
    ("filter_mode", None, "text", "Count launches overall, per GPU or per launch configuration.", ("global", "per-gpu", "per-launch-config")),
    ("graph_profiling", None, "text", "node: each kernel of a CUDA graph; graph: one result per graph launch.", ("node", "graph")),
    ("app_replay_match", None, "text", "How application replay matches the kernels of different passes.", ("name", "grid", "all")),
    ("app_replay_mode", None, "text", "How strictly application replay matches them.", ("strict", "balanced", "relaxed")),
    ("clock_control", "none", "text", "none leaves the clocks alone; base locks them to the base clock.", ("none", "base", "reset")),
    ("pipeline_boost_state", None, "text", "Boost of the tensor cores: stable (ncu's default) makes runs comparable; dynamic is what a program gets without ncu.", ("stable", "dynamic")),
    ("cache_control", "none", "text", "none leaves the caches alone; all flushes them before every pass, which distorts the DRAM bytes of a region.", ("none", "all")),
    ("import_sass", "no", "text", "yes stores the machine code: 20 MB instead of 0.1 MB."),
    ("force_overwrite", False, "switch", "Overwrite an existing report; a run directory is new, so this is never needed."),
    ("extra_args", [], "list", "Passed to ncu unchanged, one element each."),
)  # fmt: skip
_TIMELINE: list[Option[Any]] = [
    NSYS_ENABLE,
    *_keys(
        _NSYS, "timeline.options",
        ("trace", ["cuda", "nvtx"], "list", "APIs to trace; osrt, cublas and cudnn cost more."),
        ("sample", "none", "text", "CPU sampling: none, process-tree or system-wide; anything but none can write gigabytes.", ("none", "process-tree", "system-wide")),
        ("cpuctxsw", "none", "text", "Context switches: none, process-tree or system-wide.", ("none", "process-tree", "system-wide")),
        ("capture_range", None, "text", "Record only between two marks.", ("none", "cudaProfilerApi", "nvtx", "hotkey")),
        ("capture_range_end", None, "text", "What happens at the second mark; if not set: stop, which lets the program finish."),
        ("nvtx_capture", None, "text", "NAME@DOMAIN of the range that starts the recording; implies capture_range=nvtx."),
        ("cuda_graph_trace", "node", "text", "node: the kernels of CUDA graphs; graph: one block per launch."),
        ("extra_args", [], "list", "Passed to nsys unchanged, one element each."),
    ),
    *_keys(
        _NSYS, "timeline",
        ("traffic_hz", 10000, "number", "Samples per second of the GPU's memory traffic, for the totals of regions; 0: none. Only if counters are collected."),
        ("timeout_s", None, "seconds", "Stop nsys after this time; what it recorded is kept."),
    ),
]  # fmt: skip
_HARDWARE: Option[Any] = Option(
    key="hardware", kind="mapping", default={}, to="report.hardware",
    help="Peaks of the GPU, such as hardware.bandwidth=4.8TB/s; hardware.peaks=ncu: take them from ncu's roofline metrics (set roofline), if present.",
)  # fmt: skip
# What the built-in workload does (`runners.stage1_settings`), and what else may run in its place.
_WORKLOAD: list[Option[Any]] = [
    *_keys(
        "pipeline.", "",
        ("torch_profiler.enable", True, "switch", "Run PyTorch's profiler after the timed passes; always off under nsys and ncu."),
        ("torch_profiler.activities", ["cpu", "cuda"], "list", "What it records: cpu, cuda."),
        ("torch_profiler.record_shapes", True, "switch", "Shapes of the operators' inputs."),
        ("torch_profiler.profile_memory", True, "switch", "Memory that each operator allocates and frees."),
        ("torch_profiler.with_stack", False, "switch", "Python stacks of the operators; slow."),
        ("torch_profiler.warmup_rounds", 1, "number", "Passes before the recorded one."),
        ("static_analysis.enable", True, "switch", "Compute FLOPs and bytes of each stage from the model alone."),
        ("direct_inference.enable", False, "switch", "Run the dataset through the model with no profiler, and write predictions as JSON lines."),
        ("direct_inference.output.path", "predictions.jsonl", "text", "File for the predictions, relative to the run directory."),
        ("workload.module", "llm_perf_opt.runners.llm_profile_runner", "text", "The Python module that is profiled."),
        ("workload.command", None, "list", "Any other command instead, such as [python,my_model.py]."),
    ),
    MODE,
    TOP_N_KERNELS,
    *_keys(
        "", "",
        ("device", "cuda:0", "text", "cpu, cuda or cuda:N"),
        ("repeats", 3, "count", "Timed passes."),
        ("warmup", 1, "number", "Passes before the timed ones."),
        ("model.name", "tiny_llm", "text", "Which model; see the group model."),
        ("model.path", None, "text", "A local folder in the layout of Hugging Face; without one, weights are random."),
        ("model.dtype", "bfloat16", "text", "float32, float16 or bfloat16."),
        ("model.attn_implementation", None, "text", "sdpa, eager, flash_attention_2, …; if not set: transformers chooses."),
        ("model.config", {}, "mapping", "The model's configuration: all of it for random weights, overrides for a path."),
        ("model.trust_remote_code", False, "switch", "Run Python code from model.path: only for folders you trust."),
        ("model.compile", None, "text", "A torch.compile mode for decode steps, such as default or reduce-overhead."),
        ("model.cuda_graphs", False, "switch", "Capture one CUDA graph, and replay it for decode steps."),
        ("model.seed", 0, "number", "Seed for random weights and generated prompts."),
        ("infer.max_new_tokens", 16, "count", "Tokens to generate."),
        ("infer.batch_size", 1, "count", "Prompts per batch."),
        ("infer.prompt_tokens", None, "count", "Make every prompt exactly this long."),
        ("infer.max_image_tiles", 6, "number", "Maximum number of tiles per page, for models that work on tiles."),
        ("infer.ignore_eos", None, "switch", "Continue after the end-of-text token; if not set: only with random weights."),
        ("dataset.root", None, "text", "Folder of the inputs."),
        ("dataset.subset_filelist", None, "text", "A text file with one path per line, or a glob below dataset.root."),
        ("dataset.prompts", [], "list", "Prompts, or one .txt file with one prompt per line."),
        ("dataset.sampling.num_epochs", 1, "count", "How many times to run through the dataset."),
        ("dataset.sampling.randomize", False, "switch", "Shuffle the inputs."),
        ("dataset.sampling.seed", 0, "number", "Seed for the shuffle."),
        ("inputs.manifest", None, "text", "A YAML list of inputs, each a path or a prompt."),
    ),
    Option(
        key="dataset.sampling.num_samples_per_epoch", default=None, kind="count", nullable=True,
        help="Inputs per epoch; if not set: all given inputs, or one batch of the built-in ones.",
    ),
]  # fmt: skip

OPTIONS = (*_COMMAND_LINE, *_COUNTERS, *_NCU_CLI, *_TIMELINE, _HARDWARE, *_WORKLOAD)
KEYS: Mapping[str, Option[Any]] = {option.key: option for option in OPTIONS if option.key}


def options_of(verb: str) -> list[Option[Any]]:
    """The options of a verb of the command line, in the order of its help."""
    return [option for option in OPTIONS if verb in option.verbs]


def default_config() -> dict[str, Any]:
    """All keys with their defaults, nested as in the configuration."""
    tree: dict[str, Any] = {}
    for key, option in KEYS.items():
        *path, last = key.split(".")
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[last] = list(option.default) if isinstance(option.default, list) else option.default
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a nested configuration with their values; a mapping that is a value stays whole."""
    for name, value in tree.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping) and (full not in KEYS or KEYS[full].kind != "mapping"):
            yield from flatten(value, f"{full}.")
        else:
            yield full, value


def checked_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration; `UserError` names the first key that is missing or has a value it cannot have.

    Hydra's overrides go through here, and so does what a manifest holds, which may be untrusted.
    """
    values = dict(flatten(config))
    if missing := [name for name in KEYS if name not in values]:
        raise UserError(
            f"The configuration has no {missing[0]} any more.",
            "Set single keys, as in run.mode=deep; none can be removed.",
        )
    for name, value in values.items():
        if name in KEYS:
            KEYS[name].check(value)
    return dict(config)
