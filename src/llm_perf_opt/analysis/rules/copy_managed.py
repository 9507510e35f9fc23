"""Pages of unified memory that move on demand"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.host_copies import copies_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="copy.managed",
    title="Pages of unified memory that move on demand",
    costs="A kernel that touches a page on the host waits until that page has migrated to the GPU.",
    seen="Migrations of unified memory make up most of the traffic between host and GPU.",
    words=Words(
        because="pages of unified memory migrate for {time} of {now}",
        action="move them before they are touched (cudaMemPrefetchAsync, cudaMemAdvise), keep the host from touching them in between, or copy explicitly",
    ),
    find=copies_found("copy.managed"),
    gain="The time of the migrations, minus the time that their bytes take over the link in large copies. The interval begins at half of that.",
    before="cudaMallocManaged(&x, bytes);\nkernel<<<grid, block>>>(x);  // faults",
    after="cudaMemPrefetchAsync(x, bytes, device, stream);\nkernel<<<grid, block, 0, stream>>>(x);",
    unless="The data does not fit into the GPU's memory: then pages have to migrate back and forth.",
)
