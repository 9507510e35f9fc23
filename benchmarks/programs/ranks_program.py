"""Ranks that train together, by gloo: on one GPU, which NCCL refuses, or on a CPU. Each keeps its own record of its steps.

    torchrun --nproc-per-node 2 ranks_program.py FOLDER [--tiny]

The launcher is torchrun or srun. Rank 1 waits for its data. FOLDER/rank-N.json: seconds of each step and of its parts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nvtx
import torch
import torch.distributed as dist

LATE = 1  # the rank that waits
LATE_S = 0.03
PARTS: dict[str, list[float]] = {}


@contextmanager
def part(name: str) -> Iterator[None]:
    with nvtx.annotate(name):
        began = time.perf_counter()
        yield
        PARTS.setdefault(name, []).append(time.perf_counter() - began)


def named_like_a_collective(device: str) -> Callable[[], None]:
    """A kernel with the name of one of NCCL, which refuses two ranks on one GPU: ncu has to leave it out.

    Where this PyTorch compiles no kernels of one's own, nothing.
    """
    try:
        source = 'extern "C" __global__ void ncclDevKernel_StandIn(float* x) { x[threadIdx.x] += 1.0f; }'
        kernel = torch.cuda._compile_kernel(source, "ncclDevKernel_StandIn")
        given = torch.zeros(32, device=device)
        kernel((1, 1, 1), (32, 1, 1), (given,))
    except Exception as error:
        print(f"no kernel is named like a collective: {error}")
        return lambda: None
    return lambda: kernel((1, 1, 1), (32, 1, 1), (given,))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    ranks = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    gpu = torch.cuda.is_available() and not options.tiny
    device, kind = ("cuda:0", torch.bfloat16) if gpu else ("cpu", torch.float32)
    torch.set_num_threads(1)
    size, layers, steps = (4096, 8, 40) if gpu else (128, 2, 12)
    collective = named_like_a_collective(device) if gpu else lambda: None
    torch.manual_seed(0)
    weights = [torch.randn(size, size, device=device, dtype=kind) * size**-0.5 for _ in range(layers)]
    for _ in range(steps):
        with part("step"):
            with part("data"):
                batch = torch.randn(size, size, device=device, dtype=kind)
                if rank == LATE:
                    time.sleep(LATE_S)
            with part("forward"):
                for weight in weights:
                    batch = torch.relu(batch @ weight)
                if gpu:
                    torch.cuda.synchronize()
            with part("all_reduce"):
                collective()
                total = batch.float().mean(dim=0).cpu()
                dist.all_reduce(total)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"rank-{rank}.json").write_text(json.dumps(PARTS))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
