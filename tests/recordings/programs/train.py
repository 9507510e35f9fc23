"""Three training steps of a small stack; PyTorch launches the backward kernels from autograd's own thread."""

import contextlib

import nvtx
import torch

torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(4)]
model = torch.nn.Sequential(*blocks).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)


def step(mark):
    def region(name):
        return nvtx.annotate(name) if mark else contextlib.nullcontext()

    with region("step"):
        with region("forward"):
            loss = model(x).float().square().mean()
        started = nvtx.start_range("backward_se") if mark else None
        with region("backward"):
            loss.backward()
        if mark:
            nvtx.end_range(started)
        with region("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()


step(False)
step(False)
for _ in range(3):
    step(True)
print("ok")
