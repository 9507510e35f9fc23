"""The recording behind `llm-perf demo`: an 8-layer decoder on an H200, timeline and counters."""
