"""Two processes on one GPU: torchrun --nproc-per-node 2 ranks.py"""

import nvtx
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(0)
layer = torch.nn.Linear(2048, 2048).cuda().bfloat16()
x = torch.randn(256 * (rank + 1), 2048, device="cuda", dtype=torch.bfloat16)
with torch.inference_mode():
    for _ in range(3):
        layer(x)
    torch.cuda.synchronize()
    dist.barrier()
    with nvtx.annotate("prefill", domain="LLM"):
        y = torch.relu(layer(x))
    for _ in range(4):
        with nvtx.annotate("decode_step", domain="LLM"):
            y = layer(y)
    torch.cuda.synchronize()
    total = torch.ones(4)
    dist.all_reduce(total)
print("rank", rank, total.sum().item())
