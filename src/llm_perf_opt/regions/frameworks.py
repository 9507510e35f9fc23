"""Whether a program may be one of PyTorch: what to type against a slow program is another thing elsewhere."""

from __future__ import annotations

import re

from llm_perf_opt.regions.columns import UNKNOWN, Timeline
from llm_perf_opt.regions.distinct import distinct

_KERNELS = re.compile(r"\bat::|\bc10::|torch|^triton_(poi|red|per|tem|for|spl)_")
_OTHERS = re.compile(
    r"^(loop|input|gemm)_\w*fusion|^wrapped_|^cudapy::|^cupy_|^(void )?(tensorflow|Eigen)::|^\w*(cudf|ggml)\w*::"
)
_PROGRAMS = re.compile(
    r"python|torch|^pt_|vllm|sglang|^ray(::|$)|text-generation|lmdeploy|ipykernel|jupyter|accelerate", re.I
)


def is_of_torch(kernel: str) -> bool:
    """Does the name of a kernel say that PyTorch, or its compiler, made it?"""
    return _KERNELS.search(kernel[:300]) is not None


def may_be_torch(timeline: Timeline) -> bool:
    """Is there nothing that speaks against it? Kernels tell, or else the names of the processes."""
    if timeline.kind != "nsys-sqlite":
        return True
    strings = timeline.strings
    names = [strings[n] for n in distinct(timeline.kernels.name).tolist() if n != UNKNOWN]
    if any(map(is_of_torch, names)):
        return True
    if any(_OTHERS.search(name[:300]) for name in names):
        return False
    programs = [process.name for process in timeline.processes]
    return not all(programs) or any(_PROGRAMS.search(name) for name in programs)
