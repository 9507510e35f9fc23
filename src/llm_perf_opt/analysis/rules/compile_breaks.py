"""A compiled model that falls into many pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from attrs import evolve

from llm_perf_opt.analysis.rules.idle_found import idle_found
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated, from_graphs
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.labels import counted

_PIECE = re.compile(r"Torch-Compiled Region: \d+/\d+")
_FEWEST = 4  # different pieces in one step: forward, loss and optimiser may be compiled each by itself
_CAUSES = ("launch.graph", "host.graphs", "host.python", "host.unknown")
_LEAST, _MOST = 0.6, 1.0  # of the waiting for pieces


def _find(of: Evaluated) -> Iterator[Found]:
    names = of.launched.annotations
    pieces = {name.partition("/")[0] for name in names if _PIECE.match(name)}
    calls = sum(count for name, count in names.items() if _PIECE.match(name)) / of.launched.instances
    if len(pieces) < _FEWEST or calls < len(pieces):
        return
    idle = sum(of.free.idle[rule].time_ns for rule in _CAUSES if rule in of.free.idle)
    entering = 1.0 if from_graphs(of.region) else _entering(of.launched)
    taken = of.free.take_idle(_CAUSES, min(idle * entering, of.light.waiting_ns))
    if taken:
        what = f"{counted(len(pieces), 'piece')}, {calls:.0f} calls a step"
        found = idle_found(of, "compile.breaks", taken, what)
        won = found.time * (1 - 1 / len(pieces))  # the whole has to be entered, too
        yield evolve(found, recoverable=won, interval=(won * _LEAST, found.time * _MOST))


def _entering(launched: Launched) -> float:
    """What part of the time between launches is spent on getting from one piece into the next."""
    gaps = launched.host_gaps
    if gaps is None or not gaps.total_ns:
        return 1.0
    pieces = {name: number for number, name in enumerate(dict.fromkeys(map(_piece, launched.kinds)))}
    piece = np.array([pieces[_piece(kind)] for kind in launched.kinds], dtype=np.int64)[launched.which]
    enters = np.append(True, piece[1:] != piece[:-1])
    inside = float(np.median(gaps.ns[~enters])) if not enters.all() else 0.0
    return min(float(np.maximum(gaps.ns[enters] - inside, 0.0).sum()) / gaps.total_ns, 1.0)


def _piece(kind: LaunchKind) -> str:
    """The innermost: each piece calls the next."""
    return next((name for name in reversed(kind.operators) if _PIECE.match(name)), "")


RULE = Rule(
    id="compile.breaks",
    title="Graph breaks in compiled code",
    costs="Every piece is entered from Python, with its own guards, and nothing is fused across a break.",
    seen="Four or more different compiled regions (`Torch-Compiled Region: 0/0`, `1/0`, …) in each step, while the GPU waits for launches.",
    words=Words(
        because="the GPU waits {time} of {now} between pieces of compiled code ({what})",
        action='find the graph breaks (TORCH_LOGS="graph_breaks", or torch.compile(fullgraph=True)) and remove what causes them: print, .item(), data-dependent branches',
    ),
    find=_find,
    operators=True,
    gain="The idle time in which the host moves from one piece to the next, except for one entry into the whole.",
    before="@torch.compile\ndef f(x):\n    x = layer(x)\n    print(x.shape)\n    return head(x)",
    after="@torch.compile(fullgraph=True)\ndef f(x):\n    return head(layer(x))",
    unless="The pieces are different models, compiled one by one.",
)
