"""Ranges with every character ncu's NVTX filter gives a meaning to; one kernel in each."""

import nvtx
import torch

x = torch.ones(1024, device="cuda")
torch.cuda.synchronize()

# fmt: off
NAMES = [
    "plain", "layer1", "layer10", "a/b", "LLM@step", "a*b", "a+b", "a,b", "[x]", "x]", "[x", "a.b", "a(b)",
    "a|b", "a\\b", "a b", "a:b", "a::b", "a^b$", "regex:x", 'a"b', "a'b", "größe", "层", "a;b", "a{2}", "a?b",
    "*", "/", "a\nb", "tab\tx", "<script>", "%s", "-x", "@", "a\\@b", "x/", "/x", "LLM@",
]
# fmt: on

for domain in (None, "LLM", "My.Dom", "D@x", "d/e"):
    for name in NAMES if domain in (None, "LLM") else ["plain", "a/b", "LLM@step"]:
        with nvtx.annotate(name) if domain is None else nvtx.annotate(name, domain=domain):
            x.add_(1)

with nvtx.annotate("outer"):
    with nvtx.annotate("inner", domain="LLM"):
        x.add_(1)
    with nvtx.annotate("inner"), nvtx.annotate("outer"):
        x.add_(1)

started = nvtx.start_range("se/name")
x.add_(1)
nvtx.end_range(started)
started = nvtx.start_range("se", domain="LLM")
x.add_(1)
nvtx.end_range(started)
torch.cuda.synchronize()
