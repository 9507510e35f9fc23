"""Every key of the configuration: its default, what it may be, and what it does.

One table for everything that has to agree: the defaults Hydra starts from, what an override may say, and the
page about configuration. Whether an option exists in the installed ncu is not decided here; ncu is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attrs import define

Kind = Literal["switch", "number", "count", "seconds", "text", "list", "size", "mapping"]
_WORDS = {
    "switch": "true or false",
    "number": "a whole number",
    "count": "a whole number above 0",
    "seconds": "a number of seconds",
    "text": "a text",
    "list": "a list, or a text with commas",
    "size": "a size, as in 2GB or 500MB",
    "mapping": "names with values, as in {a: 1}",
}


@define(frozen=True)
class Key:
    """One key."""

    name: str
    default: Any
    kind: Kind
    help: str
    values: tuple[str, ...] = ()  # where only some words are allowed

    @property
    def allowed(self) -> str:
        """What may stand behind the equals sign, for people."""
        words = ", ".join(self.values) if self.values else _WORDS[self.kind]
        return f"{words}; null leaves it open" if self.nullable else words

    @property
    def nullable(self) -> bool:
        """May it be left open?"""
        return self.default is None or self.name == "dataset.sampling.num_samples_per_epoch"


def _section(prefix: str, rows: Iterable[tuple[Any, ...]]) -> list[Key]:
    return [Key(f"{prefix}{row[0]}", row[1], row[2], row[3], tuple(row[4]) if len(row) > 4 else ()) for row in rows]


_NCU = _section(
    "pipeline.ncu.",
    [
        ("enable", None, "switch", "Take counters with ncu; left open: when run.mode is deep."),
        ("strategy", "auto", "text", "auto: the timeline decides which launches are worth their cost. as_given: ncu gets ncu_cli and nothing else.", ("auto", "as_given")),
        ("gating_nvtx", True, "switch", "Profile inside the regions of nvtx.include only; false: the whole program."),
        ("aggregate", True, "switch", "Report the sum over all processes and devices beside each of them."),
        ("kernels.include", [], "list", "Kernels to count: globs or regex:…; empty: all."),
        ("kernels.exclude", [], "list", "Kernels not to count; wins over include."),
        ("sample", "all", "text", "Instances of a repeated range to profile: all, first, middle, last, every:N."),
        ("level", "roofline", "text", "How much is measured, where the strategy is auto and no metrics, sections or set are given.", ("time", "roofline", "bound", "stalls", "full")),
        ("budget", None, "text", "Time for all captures together, as in 60s or 2m; left open: what a good result takes."),
        ("launches", 3, "count", "Launches of each kernel and launch configuration, where the strategy is auto."),
        ("fallback", True, "switch", "Where the program does not allow a replay mode, try the next: range, app-range, kernel."),
        ("windows", True, "switch", "Have the program itself switch ncu on around the planned launches only (capture windows), where it can."),
        ("run_to_end", False, "switch", "Let the program run to its end under ncu; otherwise it is ended as soon as all planned samples are in."),
        ("verify", False, "switch", "Afterwards measure the regions as wholes with the same counters, and show estimate against truth."),
        ("strict", False, "switch", "Exit with 6 where no region matches."),
        ("timeout_s", None, "seconds", "Stop ncu after this time; what it captured is kept."),
    ],
)  # fmt: skip

_NCU_CLI = _section(
    "pipeline.ncu.ncu_cli.",
    [
        ("set", None, "text", "Named set of sections: basic takes 10 passes, roofline 17, full 38 on an H200."),
        ("sections", [], "list", "Section identifiers, as in [SpeedOfLight,Occupancy]."),
        ("metrics", [], "list", "Metric names; what fits into one pass costs a seventh of the set basic."),
        ("replay_mode", None, "text", "kernel, application, range or app-range; a mode the program does not allow falls back."),
        ("target_processes", "all", "text", "all or application-only; launchers such as torchrun need all."),
        ("nvtx.include", [], "list", "Regions to profile: globs, A/B, DOMAIN@NAME, regex:…, or ncu:EXPRESSION."),
        ("nvtx.exclude", [], "list", "Regions to leave out."),
        ("nvtx.push_pop_scope", None, "text", "thread or process; left open: process where autograd or workers launch kernels."),
        ("range_filter", None, "text", "Instances of the matching ranges in ncu's own form, as in ::[2-4]."),
        ("kernel_name", None, "text", "An exact kernel name, or regex:…"),
        ("kernel_name_base", None, "text", "function, demangled or mangled: what kernel_name is compared with."),
        ("kernel_id", None, "text", "context:stream:[regex:]name:invocation"),
        ("launch_skip", None, "number", "Matching launches to pass over, over all kernels together."),
        ("launch_count", None, "number", "Matching launches to profile, then no more."),
        ("filter_mode", None, "text", "global, per-gpu or per-launch-config."),
        ("graph_profiling", None, "text", "node: each kernel of a CUDA graph; graph: one result a graph launch."),
        ("app_replay_match", None, "text", "How kernels of two passes are paired in application replay: name, grid, all."),
        ("app_replay_mode", None, "text", "strict, balanced or relaxed."),
        ("clock_control", "none", "text", "none leaves the clocks alone; base locks them low."),
        ("cache_control", "none", "text", "none leaves the caches alone; all flushes them, which falsifies the DRAM figures of a region."),
        ("import_sass", "no", "text", "yes stores the machine code: 20 MB instead of 0.1 MB."),
        ("force_overwrite", False, "switch", "Overwrite an existing report; a run directory is new, so this is never needed."),
        ("extra_args", [], "list", "Handed to ncu as they are, one element each."),
    ],
)  # fmt: skip

_NSYS = _section(
    "pipeline.nsys.",
    [
        ("enable", None, "switch", "Take a timeline with nsys; left open: yes, unless pipeline.ncu.strategy is as_given."),
        ("trace", ["cuda", "nvtx"], "list", "APIs to trace; osrt, cublas and cudnn cost more."),
        ("sample", "none", "text", "CPU sampling: none, process-tree or system-wide; more than none can write gigabytes."),
        ("cpuctxsw", "none", "text", "Context switches: none, process-tree or system-wide."),
        ("capture_range", None, "text", "Record only between two marks: cudaProfilerApi or nvtx."),
        ("capture_range_end", None, "text", "What happens at the second mark; left open: stop, which lets the program finish."),
        ("nvtx_capture", None, "text", "NAME@DOMAIN of the range that opens the recording; implies capture_range=nvtx."),
        ("cuda_graph_trace", "node", "text", "node: the kernels of CUDA graphs; graph: one block a launch."),
        ("extra_args", [], "list", "Handed to nsys as they are, one element each."),
        ("traffic_hz", 10000, "number", "Samples a second of the bytes that the GPU moves, for the totals of regions; 0: none. Only where counters are taken."),
        ("max_size", "2GB", "size", "End the recording when it reaches this size; 0: no limit."),
        ("timeout_s", None, "seconds", "Stop nsys after this time; what it recorded is kept."),
    ],
)  # fmt: skip

_STAGE1 = _section(
    "pipeline.",
    [
        ("torch_profiler.enable", True, "switch", "Run torch's profiler after the timed passes; always off under nsys and ncu."),
        ("torch_profiler.activities", ["cpu", "cuda"], "list", "What it records: cpu, cuda."),
        ("torch_profiler.record_shapes", True, "switch", "Shapes of the operators' inputs."),
        ("torch_profiler.profile_memory", True, "switch", "Memory each operator takes and gives back."),
        ("torch_profiler.with_stack", False, "switch", "Python stacks of the operators; slow."),
        ("torch_profiler.warmup_rounds", 1, "number", "Passes before the recorded one."),
        ("static_analysis.enable", True, "switch", "FLOPs and bytes of each stage from the model alone."),
        ("direct_inference.enable", False, "switch", "The dataset through the model with no profiler, predictions as JSON lines."),
        ("direct_inference.output.path", "predictions.jsonl", "text", "Where the predictions go; relative to the run directory."),
        ("workload.module", "llm_perf_opt.runners.llm_profile_runner", "text", "The Python module that is profiled."),
        ("workload.command", None, "list", "Any command instead, as in [python,my_model.py]."),
        ("annotate.mode", "off", "text", "Mark stages or modules of a Python program that has no ranges of its own.", ("off", "stages", "modules")),
        ("annotate.depth", 3, "count", "With modules: how many levels below the model."),
    ],
)  # fmt: skip

_WORKLOAD = _section(
    "",
    [
        ("device", "cuda:0", "text", "cpu, cuda or cuda:N"),
        ("repeats", 3, "count", "Timed passes."),
        ("warmup", 1, "number", "Passes before the timed ones."),
        ("model.name", "tiny_llm", "text", "Which model; see the group model."),
        ("model.path", None, "text", "A local folder in the layout of Hugging Face; without one, weights are random."),
        ("model.dtype", "bfloat16", "text", "float32, float16 or bfloat16."),
        ("model.attn_implementation", None, "text", "sdpa, eager, flash_attention_2, …; left open: what transformers chooses."),
        ("model.config", {}, "mapping", "The model's own configuration: all of it for random weights, changes to it for a path."),
        ("model.trust_remote_code", False, "switch", "Run Python code that lies in model.path: only for folders you trust."),
        ("model.compile", None, "text", "A mode of torch.compile for decode steps, as in default or reduce-overhead."),
        ("model.cuda_graphs", False, "switch", "Decode steps replay one captured CUDA graph."),
        ("model.seed", 0, "number", "Of random weights and made-up prompts."),
        ("infer.max_new_tokens", 16, "count", "Tokens to generate."),
        ("infer.batch_size", 1, "count", "Prompts at once."),
        ("infer.prompt_tokens", None, "count", "Make every prompt exactly this long."),
        ("infer.max_image_tiles", 6, "number", "Tiles a page is cut into at most, where the model looks at tiles."),
        ("infer.ignore_eos", None, "switch", "Go on behind the end of text; left open: only with random weights."),
        ("dataset.root", None, "text", "Folder of the inputs."),
        ("dataset.subset_filelist", None, "text", "A text file with a path a line, or a glob below dataset.root."),
        ("dataset.prompts", [], "list", "Prompts, or one .txt file with a prompt a line."),
        ("dataset.sampling.num_epochs", 1, "count", "How often the dataset is run through."),
        ("dataset.sampling.num_samples_per_epoch", 1, "count", "Inputs of each epoch; null: all."),
        ("dataset.sampling.randomize", False, "switch", "Shuffle."),
        ("dataset.sampling.seed", 0, "number", "Of the shuffle."),
        ("run.mode", "deep", "text", "light: stage timings and the timeline only. deep: counters, torch's profiler and static analysis too.", ("light", "deep")),
        ("run.top_n_kernels", 30, "number", "The heaviest kernels of the chosen regions, which get counters and head the lists."),
        ("inputs.manifest", None, "text", "A YAML list of inputs, a path or a prompt each."),
    ],
)  # fmt: skip

KEYS: Mapping[str, Key] = {key.name: key for key in (*_NCU, *_NCU_CLI, *_NSYS, *_STAGE1, *_WORKLOAD)}


def defaults() -> dict[str, Any]:
    """All keys with their defaults, nested as in the configuration."""
    tree: dict[str, Any] = {}
    for key in KEYS.values():
        *path, last = key.name.split(".")
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[last] = list(key.default) if isinstance(key.default, list) else key.default
    return tree


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a nested configuration with their values; a mapping that is a value stays whole."""
    for name, value in tree.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping) and (full not in KEYS or KEYS[full].kind != "mapping"):
            yield from flattened(value, f"{full}.")
        else:
            yield full, value
