"""The host waits, too"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.wait",
    title="The host waits for something else",
    costs="Neither the host nor the GPU has anything to do: no request has come, or another process holds them up.",
    seen="Gaps of the GPU while the launching thread is in a function that waits (poll, select, a lock, a queue), and no other thread is seen at work.",
    words=Words(
        because="the GPU waits {time} of {now} while the host itself waits ({what})",
        action="find out what it waits for: a server without requests needs more load to be measured; a lock, a queue or another process has to be quicker",
        looks=True,
    ),
    find=idle_of("host.wait"),
)
