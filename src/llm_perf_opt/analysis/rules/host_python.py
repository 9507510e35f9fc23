"""The host computes while the GPU waits"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.python",
    title="The host computes while the GPU waits",
    costs="While Python works between launches, nothing runs on the GPU.",
    seen="Gaps while the launching thread is in a function, an operator or a range that launches nothing.",
    words=Words(
        because="the GPU waits {time} of {now} while the host computes ({what})",
        action="make that code faster, or move it to another thread or out of the loop",
    ),
    find=idle_of("host.python"),
    before="for step in range(n):\n    text = render(tokens)  # 5 ms of Python before the next launch\n    tokens = model(tokens)",
    after="for step in range(n):\n    done = pool.submit(render, tokens)  # meanwhile the GPU goes on\n    tokens = model(tokens)",
    unless="The next launch needs what the host computes.",
)
