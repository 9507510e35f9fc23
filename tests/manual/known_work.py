"""Work whose FLOPs and bytes are known: matrix products, copies, and a loop of tiny kernels. Needs a GPU and torch.

Each part is a range of domain HAND, synchronised at its end, and timed by CUDA events as well. The numbers
that a report must find are written to a file of their own for every run of the program.
"""

import argparse
import json
import time
from pathlib import Path

import nvtx
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="", help="folder for the numbers of this run")
# A multiple of every tile of cuBLAS (128, 192, 256, 320): other sizes are padded to whole tiles, and the tensor
# cores really do that work (8192 with tiles of 320: 1.6 % more).
parser.add_argument("--size", type=int, default=7680, help="of the square matrices")
parser.add_argument("--products", type=int, default=100)
parser.add_argument("--copies", type=int, default=50)
parser.add_argument("--copy-bytes", type=int, default=1 << 32)
parser.add_argument("--launches", type=int, default=2000)
args = parser.parse_args()

a, b = (torch.randn(args.size, args.size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
product = torch.empty_like(a)
source = torch.randint(0, 255, (args.copy_bytes,), device="cuda", dtype=torch.uint8)
target = torch.empty_like(source)
few = torch.zeros(1024, device="cuda")

PARTS = {
    "gemm": (lambda: torch.mm(a, b, out=product), args.products, {"flops": 2 * args.size**3}),
    # Much larger than any L2: every byte comes from memory and goes there. PyTorch's plain copy is a memcpy,
    # which ncu does not see; changing the sign moves the same bytes with a kernel.
    "copy": (lambda: target.copy_(source), args.copies, {"bytes": 2 * args.copy_bytes}),
    "kernel_copy": (
        lambda: torch.neg(source.view(torch.float32), out=target.view(torch.float32)),
        args.copies,
        {"bytes": 2 * args.copy_bytes},
    ),
    "launch_loop": (lambda: few.add_(1.0), args.launches, {}),
}


def run(name, work, count, marked):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with nvtx.annotate(name, domain="HAND") if marked else torch.inference_mode():
        begin = time.perf_counter()
        start.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    return start.elapsed_time(end) / 1e3, wall


truth = {"gpu": torch.cuda.get_device_name(), "parts": {}}
for name, (work, count, once) in PARTS.items():
    run(name, work, max(count // 5, 3), marked=False)  # warm, and at a steady clock
    event_s, wall_s = run(name, work, count, marked=True)
    truth["parts"][name] = {"count": count, "event_s": event_s, "wall_s": wall_s} | {
        k: v * count for k, v in once.items()
    }

if args.out:
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"truth-{time.time_ns()}.json").write_text(json.dumps(truth, indent=2) + "\n")
print(json.dumps(truth))
