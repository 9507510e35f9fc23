"""From numbers to decisions: work and time of a region against what the GPU can do, and what to fix first.

`attach.attach` is the one entry: it evaluates the regions of a finished report. Everything below it is pure functions
over one region; thresholds, rules and the meaning of counters are data (`*.toml`).
"""
