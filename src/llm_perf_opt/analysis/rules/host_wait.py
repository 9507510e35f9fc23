"""The host itself waits"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.wait",
    title="The host waits for something else",
    costs="Neither the host nor the GPU has work: no request has arrived, or another process delays them.",
    seen="The GPU is idle while the launching thread is in a function that waits (poll, select, a lock, a queue), and no other thread was seen working.",
    words=Words(
        because="the GPU waits {time} of {now} while the host itself waits ({what})",
        action="find out what it waits for: put more load on a server, or speed up whatever holds the lock, fills the queue or answers",
        looks=True,
    ),
    find=idle_of("host.wait"),
    before="with lock:  # held by a thread that writes a checkpoint\n    y = model(x)",
    after="snapshot = copy_of(weights)  # the other thread writes this, without the lock\ny = model(x)",
    unless="There is no more work: a server without requests has nothing to do.",
)
