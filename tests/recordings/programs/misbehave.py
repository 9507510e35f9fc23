"""A few kernels in a few ranges; misbehaves on request."""

import os, signal, sys, time
import torch

mode = sys.argv[1] if len(sys.argv) > 1 else "ok"
x = torch.ones(1 << 20, device="cuda")
w = torch.nn.Linear(512, 512).cuda()
y = torch.ones(64, 512, device="cuda")
torch.cuda.synchronize()
print("program: start", flush=True)
with torch.cuda.nvtx.range("prefill"):
    for _ in range(5):
        x.add_(1)
    w(y)
torch.cuda.synchronize()
for i in range(3):
    with torch.cuda.nvtx.range("decode"):
        x.mul_(1.5)
        w(y)
torch.cuda.synchronize()
if mode == "exit3":
    sys.exit(3)
if mode == "raise":
    raise RuntimeError("the model is broken")
if mode == "segv":
    os.kill(os.getpid(), signal.SIGSEGV)
if mode == "abort":
    os.abort()
if mode == "oom":
    torch.empty(1 << 42, device="cuda")
if mode == "loop":
    while True:
        with torch.cuda.nvtx.range("decode"):
            x.mul_(1.5)
        torch.cuda.synchronize()
        time.sleep(0.05)
if mode == "profiler":
    torch.cuda.profiler.start()
    x.add_(1)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    time.sleep(3)
    print("program: after stop", flush=True)
if mode == "torchprof":
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        x.add_(1)
        torch.cuda.synchronize()
    print("program: torch profiler saw", len(p.key_averages()))
print("program: done", flush=True)
