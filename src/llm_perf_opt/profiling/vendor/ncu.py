"""The command line of ncu, under the name that scripts import it by."""

from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd

__all__ = ["NcuOptions", "build_ncu_cmd"]
