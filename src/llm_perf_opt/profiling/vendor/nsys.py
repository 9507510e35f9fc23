"""The command line of nsys, under the name that scripts import it by."""

from llm_perf_opt.nsight.nsys.argv import NsysOptions, build_nsys_cmd

__all__ = ["NsysOptions", "build_nsys_cmd"]
