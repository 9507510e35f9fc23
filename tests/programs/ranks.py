"""Data-parallel training on two processes: torchrun --nproc-per-node 2 ranks.py"""

import atexit
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
model = DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
with torch.no_grad():
    model.eval().module(torch.randn(2, 4))
dist.barrier()  # who leaves while the other still talks may be aborted by gloo
dist.destroy_process_group()
# Threads of gloo may still hold Python objects, and abort where they give them up while the interpreter is taken down.
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)
