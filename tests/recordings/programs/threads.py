"""Two threads with ranges of their own, and a third that launches with none open."""

import threading

import nvtx
import torch

x = torch.ones(1 << 16, device="cuda")
y = torch.ones(1 << 16, device="cuda")
torch.cuda.synchronize()


def worker(name):
    if name:
        with nvtx.annotate(name):
            y.mul_(1.5)
    else:
        y.add_(2)


with nvtx.annotate("step"), nvtx.annotate("outer"):
    for name in ("op_on_worker", None):
        thread = threading.Thread(target=worker, args=(name,))
        thread.start()
        thread.join()
    x.add_(1)
torch.cuda.synchronize()
