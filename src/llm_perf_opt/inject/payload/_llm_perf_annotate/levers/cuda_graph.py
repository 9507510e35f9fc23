"""A CUDA graph around calls of fixed shape: one launch for a whole decode step, and nothing to compile.

The third call with the same shapes is captured, later ones are replayed: inputs are copied to where the graph reads
them, a cache of fixed size is moved there once, outputs are copied out. `generate()` is given such a cache for that.
"""

from __future__ import annotations

from typing import Any

from ._static_inputs import Graphs

TITLE = "CUDA graph around calls of fixed shape"
RULES = ("launch.graph", "host.graphs", "host.python", "cache.concat", "attention.replan")
NEEDS = ("calls", "cuda", "calls outside training")
GENERAL = True
CHANGES = "rounding: attention over the padded cache of generate() uses other kernels"
EXCLUDES = ("compile", "compile-reduce-overhead", "compile-max-autotune", "static-cache")
PATCH = """\
graph = torch.cuda.CUDAGraph()  # after two calls with these shapes, and with a StaticCache that is made once
with torch.no_grad(), torch.cuda.graph(graph):
    output = model(token, position_ids=position, past_key_values=cache)
# each step: token.copy_(next_token); position.add_(1); graph.replay(); next_token = output.logits[:, -1:].argmax(-1)
# the same within generate(): model.generate(…, cache_implementation="static"), which compiles the step as well"""


def apply(program: Any) -> None:
    graphs = Graphs(program)
    program.on_generate(graphs.fix_shapes)
    program.instead_of_calls(graphs.call)


def evidence(program: Any) -> tuple[bool, str]:
    counts = program.counts
    captured, replays = counts.get("calls captured", 0), counts.get("graph replays", 0)
    if captured and replays:
        return True, f"{captured} captured, CUDA graphs replayed {replays} times in {counts.get('calls', 0)} calls"
    reasons = {what: times for what, times in counts.items() if what.startswith("no graph: ")}
    most = max(reasons, key=lambda what: reasons[what], default="")
    return False, program.refusal or most.partition(": ")[2] or "no call came three times with the same shapes"
