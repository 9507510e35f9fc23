"""A compiled model that falls into many pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_perf_opt.analysis.rules.idle_found import idle_found
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.regions.labels import counted

_PIECE = re.compile(r"Torch-Compiled Region: (\d+)/\d+")
_FEWEST = 4  # different pieces in one step: forward, loss and optimiser may be compiled each by itself
_CAUSES = ("launch.graph", "host.python", "host.unknown")


def _find(of: Evaluated) -> Iterator[Found]:
    names = of.launched.annotations
    pieces = {found[1] for name in names if (found := _PIECE.match(name))}
    calls = sum(count for name, count in names.items() if _PIECE.match(name)) / of.launched.instances
    if len(pieces) < _FEWEST or calls < len(pieces):
        return
    taken = of.free.take_idle(_CAUSES, of.light.waiting_ns)
    if taken:
        yield idle_found(of, "compile.breaks", taken, f"{counted(len(pieces), 'piece')}, {calls:.0f} calls a step")


RULE = Rule(
    id="compile.breaks",
    title="Graph breaks in compiled code",
    costs="Every piece is entered from Python, with its guards, and nothing is fused across a break.",
    seen="Four or more different compiled regions (`Torch-Compiled Region: 0/0`, `1/0`, …) in each step, and a GPU that waits for launches.",
    words=Words(
        because="the GPU waits {time} of {now} between pieces of compiled code ({what})",
        action='find the graph breaks (TORCH_LOGS="graph_breaks", or torch.compile(fullgraph=True)) and take them out of the model: print, .item(), data-dependent branches',
    ),
    find=_find,
    operators=True,
    gain="The idle time between launches.",
    before="@torch.compile\ndef f(x):\n    x = layer(x)\n    print(x.shape)\n    return head(x)",
    after="@torch.compile(fullgraph=True)\ndef f(x):\n    return head(layer(x))",
    unless="The pieces are different models that are compiled one by one.",
)
