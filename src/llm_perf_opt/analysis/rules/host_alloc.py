"""Memory is taken and given back in every step"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.alloc",
    title="Memory is allocated and freed in every step",
    costs="cudaMalloc and cudaFree wait for the GPU and take up to milliseconds.",
    seen="Gaps in steady steps while the host allocates or frees device memory, or host memory for the device.",
    words=Words(
        because="the GPU waits {time} of {now} while memory is allocated or freed ({what})",
        action="allocate once and reuse: keep buffers, leave out torch.cuda.empty_cache(), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        elsewhere="allocate once and reuse: keep buffers, or take them from a pool (cudaMallocAsync, RMM)",
    ),
    find=idle_of("host.alloc"),
    before="""\
loss.backward()
torch.cuda.empty_cache()
""",
    after="loss.backward()",
    unless="Another process needs the memory in the meantime.",
)
