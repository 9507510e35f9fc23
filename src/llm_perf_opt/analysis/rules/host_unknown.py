"""The host does something that was not recorded"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="host.unknown",
    title="The host does something that was not recorded",
    costs="The GPU waits for it.",
    seen="Long gaps that no range, call, operator or function on the host covers.",
    words=Words(
        because="the GPU waits {time} of {now}, and the recording does not show what the host does ({what})",
        action="find out what that is: put NVTX ranges around the code between the launches, record a PyTorch trace with with_stack=True, or run `llm-perf profile -- CMD`, which records the lines of the program",
        elsewhere="find out what that is: put NVTX ranges around the code between the launches, or record what the threads do with nsys profile --trace=cuda,nvtx,osrt --sample=process-tree",
        looks=True,
    ),
    find=idle_of("host.unknown"),
    before="y = model(x)\nlog(y)\ny = model(y)",
    after='y = model(x)\nwith torch.cuda.nvtx.range("log"):\n    log(y)\ny = model(y)',
    unless="Another process uses the GPU or the CPU at that time: this recording does not show it.",
)
