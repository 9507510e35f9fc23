"""Code that is compiled again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.idle_found import idle_found, idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.host_calls import is_call
from llm_perf_opt.regions.labels import counted

_COMPILES = re.compile(r"_compile\.compile_inner|entire_frame_compile")
_OFTEN = 0.5  # of the steady instances: what is compiled in fewer may be new shapes that come once
_CAUSES = ("compile.again", "warmup", "host.python", "host.unknown")


def _find(of: Evaluated) -> Iterator[Found]:
    times = max((count for name, count in of.launched.annotations.items() if _COMPILES.match(name)), default=0)
    if of.launched.instances < 3 or times < _OFTEN * of.launched.instances:
        for found in idle_of("compile.again")(of):
            named = [cause.what for part in found.idle for cause in part.causes if cause.what]
            yield evolve(found, texts="compile.again.loads") if named and all(map(is_call, named)) else found
        return
    taken = of.free.take_idle(_CAUSES, of.light.waiting_ns)
    if taken:
        yield idle_found(
            of, "compile.again", taken, f"compiled {counted(times, 'time')} in {of.launched.instances} steps"
        )


RULE = Rule(
    id="compile.again",
    title="Compiled code is recompiled",
    costs="torch.compile traces and compiles again when a guard fails: a new size, number or type.",
    seen="Compilation (by TorchDynamo, or in a range that compiles) takes time in at least half of the steady steps while the GPU waits; or code is loaded several times as often as there are kernels.",
    words=Words(
        because="the GPU waits {time} of {now} while code is compiled again ({what})",
        action='find what changes (TORCH_LOGS="recompiles") and make it dynamic: torch.compile(dynamic=True), torch._dynamo.mark_dynamic, sizes padded to a few, numbers as tensors',
    ),
    find=_find,
    gain="The idle time during compilation.",
    before="step = torch.compile(step, dynamic=False)\nfor position in range(n):\n    step(x, position)",
    after="step = torch.compile(step, dynamic=True)",
    variants={
        "loads": Words(
            because="the GPU waits {time} of {now} while code is loaded again ({what})",
            action="load or compile code once and keep it: a cache of modules, numbers passed as arguments instead of compiled into the source",
        )
    },
    unless="New shapes occur only a few times, and the program then runs for long.",
)
