"""What the GPU can do at most: figures as data (`gpus.toml`), and how a recorded GPU finds its own."""

from llm_perf_opt.metrics.hardware.lookup import find_hardware
from llm_perf_opt.metrics.hardware.user_figures import Overrides, parse_overrides

__all__ = ["Overrides", "find_hardware", "parse_overrides"]
