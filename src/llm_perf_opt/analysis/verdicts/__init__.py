"""From numbers to decisions: work and time of a region against what the GPU can do, and what to fix first.

`attach` is the one entry: it judges the regions of a finished report. Everything below it is pure functions
over one region; thresholds, rules and the meaning of counters are data (`*.toml`).
"""

from llm_perf_opt.analysis.verdicts.attach import Inputs, attach

__all__ = ["Inputs", "attach"]
