"""What annotation costs while no profiler is attached: a stage, a module range, and both against a decode step.

Everything is measured in one process. The single costs come from modules that do nothing (the fastest of many
rounds); the decode step is that of a Hugging Face model with random weights, called in a loop written by hand, with
annotation off and on in turns, so that a busy machine slows both alike.

    python benchmarks/annotate_cost.py                                                        on a CPU
    python benchmarks/annotate_cost.py --device cuda --hidden 2048 --layers 36 --dtype bfloat16     3.2B on a GPU
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from llm_perf_opt.inject.environment import INJECTED
from llm_perf_opt.version import __version__
from provenance import commit

sys.path.insert(0, str(INJECTED))
from _llm_perf_annotate import calls, ranges, timers
from _llm_perf_annotate.stages import Stages
from _llm_perf_annotate.tree import Names

HERE = Path(__file__).resolve().parent
CHILDREN = 50
DEPTH = 3
TIMED = {
    "timed_host_us": "host clock",
    "timed_host_seldom_us": "host clock, after other work",
    "timed_with_events_us": "with CUDA events",
    "timed_with_events_seldom_us": "with CUDA events, after other work",
}
ROUNDS = 1000  # of a millisecond each: short enough for some to be undisturbed


class Annotation:
    """Switches annotation of modules on and off in this process."""

    def __init__(self, names: Names) -> None:
        chosen = ranges.choose(torch)
        self.source, push, pop = chosen or ("nothing", lambda name: None, lambda: None)
        self._calls = calls.Calls(Stages(push, pop), push, pop, names)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        setattr(nn.Module, calls.ATTRIBUTE, self._calls)
        try:
            yield
        finally:
            setattr(nn.Module, calls.ATTRIBUTE, None)


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Chain(nn.Module):
    """Calls modules that do nothing, as a language model calls its layers."""

    def __init__(self, children: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Nothing() for _ in range(children))

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None) -> torch.Tensor:
        for layer in self.layers:
            layer(input_ids)
        return input_ids


def seconds(call: Callable[[], object], times: int) -> float:
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times


def fastest(call: Callable[[], object], annotation: Annotation, times: int) -> tuple[float, float]:
    """Seconds a call with annotation off and on.

    Not in turns: from Python 3.12 on, a class that has been changed a thousand times stays slow.
    """
    off = [seconds(call, times) for _ in range(ROUNDS)]
    with annotation.on():
        on = [seconds(call, times) for _ in range(ROUNDS)]
    return min(off), min(on)


def single_costs() -> dict[str, float]:
    """Microseconds of one stage, one module range, one module without a range, and of what NVTX takes of a range."""
    token = torch.zeros(1, 1, dtype=torch.long)
    cache = ((torch.zeros(1, 1, 4, 1), torch.zeros(1, 1, 4, 1)),)

    def added(names: Names, children: int) -> float:
        model = Chain(children).eval()
        off, on = fastest(lambda: model(token, past_key_values=cache), Annotation(names), 1000 // (children + 5))
        return (on - off) * 1e6

    _, push, pop = ranges.choose(torch) or ("", lambda name: None, lambda: None)

    def nvtx() -> None:
        push("decode_step")
        pop()

    stage, with_children, with_ranges = added(Names(), 1), added(Names(), CHILDREN), added(Names(DEPTH), CHILDREN)
    return {
        "stage_us": stage,
        "module_range_us": (with_ranges - with_children) / CHILDREN,
        "module_without_range_us": (with_children - stage) / CHILDREN,
        "of_which_nvtx_us": min(seconds(nvtx, 500) for _ in range(ROUNDS)) * 1e6,
    }


def timing_costs(*, cuda: bool) -> dict[str, float]:
    """Microseconds that `measure` takes of a range: by the host's clock, and with its two CUDA events.

    `seldom`: each time after other work, so that nothing of the timers is in the processor's caches.
    """
    other, layers = torch.randn(1 << 20), nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def work() -> None:
        with torch.inference_mode():
            layers(torch.ones(64, 64))
            other.mul_(1.0)

    found = {}
    for events in (False, True) if cuda else (False,):
        with tempfile.TemporaryDirectory() as folder:
            times = timers.Timers(folder, torch if events else None)
            if events:
                torch.cuda.init()
                times._outer._per = times._inner._per = 0  # nothing is rationed

            def range_() -> None:
                times.begin("LLM", "step")  # noqa: B023 - it is called here alone
                times.end("LLM")  # noqa: B023

            name = "with_events" if events else "host"
            found[f"timed_{name}_us"] = min(seconds(range_, 500) for _ in range(ROUNDS // 5)) * 1e6
            took = []
            for _ in range(ROUNDS):
                work()
                began = time.perf_counter_ns()
                range_()
                took.append(time.perf_counter_ns() - began)
            found[f"timed_{name}_seldom_us"] = statistics.median(took) / 1e3
    return found


def decode_step(options: argparse.Namespace, names: Names) -> dict[str, float]:
    """Milliseconds a decode step, off and on."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 4,
        num_hidden_layers=options.layers,
        num_attention_heads=max(options.hidden // 128, 2),
        num_key_value_heads=max(options.hidden // 256, 1),
    )
    torch.set_default_dtype(getattr(torch, options.dtype))
    with torch.device(options.device):  # made where it runs: a CPU takes minutes for the weights of 3 billion
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    prompt = torch.randint(0, options.vocabulary, (1, options.prompt), device=options.device)
    cuda = options.device.startswith("cuda")
    # On a CPU, other programs would show in the time on the wall.
    clock = time.perf_counter if cuda else time.process_time

    def steps() -> float:
        out = model(prompt, use_cache=True)
        if cuda:
            torch.cuda.synchronize()
        began = clock()
        for _ in range(options.steps):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
        if cuda:
            torch.cuda.synchronize()
        return (clock() - began) / options.steps

    annotation = Annotation(names)
    off, on = [], []
    with torch.no_grad():
        steps()
        with annotation.on():
            steps()
        for _ in range(options.rounds):
            off.append(steps())
            with annotation.on():
                on.append(steps())
    ratios = [b / a for a, b in zip(off, on, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "off_ms": statistics.median(off) * 1e3,
        "on_ms": statistics.median(on) * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_low": quarters[0],
        "ratio_high": quarters[2],
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "named_modules": float(len(annotation._calls._named)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="result without its ending (default: that of the device, in results/)")
    options = parser.parse_args()
    torch.set_num_threads(1)

    single, timing = single_costs(), timing_costs(cuda=options.device.startswith("cuda"))
    stages, modules = decode_step(options, Names()), decode_step(options, Names(DEPTH))
    share = single["stage_us"] / (stages["off_ms"] * 1e3)
    modules_share = (single["stage_us"] + modules["named_modules"] * single["module_range_us"]) / (
        modules["off_ms"] * 1e3
    )
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or "CPU"
    source = Annotation(Names()).source
    facts = {
        "command": " ".join(["python benchmarks/annotate_cost.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "llm_perf_opt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "where": where,
        "ranges_through": source,
        **single,
        **timing,
        "stages": {**stages, "computed_share": share},
        "modules": {**modules, "computed_share": modules_share, "depth": DEPTH},
    }
    lines = [
        "# What annotation costs with no profiler attached",
        "",
        f"`{facts['command']}`, {facts['date']}, {where}, Python {facts['python']}, torch {facts['torch']}, ranges through {source}.",
        f"Llama of {stages['parameters'] / 1e6:,.0f} million parameters, {options.layers} layers, {options.dtype}, batch 1,",
        f"prompt {options.prompt}, {options.steps} decode steps; off and on in turns, {options.rounds} times.",
        "",
        "| cost of one | µs |",
        "|---|---|",
        f"| stage (outermost call recognised, range opened and closed) | {single['stage_us']:.2f} |",
        f"| module range | {single['module_range_us']:.2f} |",
        f"| call of a module that has no range | {single['module_without_range_us']:.2f} |",
        f"| of a range, NVTX itself | {single['of_which_nvtx_us']:.2f} |",
        *(
            f"| a range timed by `measure`, {how} | {timing[name]:.2f} |"
            for name, how in TIMED.items()
            if name in timing
        ),
        "",
        "| decode step | off, ms | on, ms | on / off, measured (middle half) | share by the costs above |",
        "|---|---|---|---|---|",
    ]
    for mode, found, part in (("stages", stages, share), ("modules", modules, modules_share)):
        label = mode if mode == "stages" else f"modules, depth {DEPTH}: {modules['named_modules']:.0f} ranges"
        spread = f"{found['ratio']:.4f} ({found['ratio_low']:.4f} to {found['ratio_high']:.4f})"
        lines.append(f"| {label} | {found['off_ms']:.2f} | {found['on_ms']:.2f} | {spread} | {part * 100:.3f} % |")
    text = "\n".join(lines) + "\n"
    out = options.out or HERE / "results" / f"annotate-cost-{options.device.partition(':')[0]}"
    out.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
