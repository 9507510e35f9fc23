"""Synchronising calls"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.sync",
    title="Synchronising calls",
    costs="The host waits for the GPU, then the GPU waits for the host: nothing is launched ahead.",
    seen=(
        "Gaps that begin while the host is in a call that waits for the GPU (cudaStreamSynchronize, a "
        "blocking copy of `.item()`, `.cpu()`, `nonzero`, a boolean mask)."
    ),
    words=Words(
        because="the GPU waits {time} of {now} after the host waited for it ({what})",
        action="take the synchronisation out of the loop (.item(), .cpu(), torch.cuda.synchronize()), so that the host can launch ahead",
        elsewhere="take the synchronisation out of the loop (cudaDeviceSynchronize, cudaStreamSynchronize, blocking copies), so that the host can launch ahead",
    ),
    find=idle_of("host.sync"),
    before="""\
if loss.item() > limit:
    …
""",
    after="worst = torch.maximum(worst, loss)  # checked every hundred steps",
    unless="The host has to know the value before it can go on, as at the end of a text.",
)
