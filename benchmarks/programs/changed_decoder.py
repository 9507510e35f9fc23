"""A small decoder with changes that can be planted, all in one process: for `benchmarks/compare.py`.

Three stages: `prefill` (about 40 ms, the GPU never waits), `decode` (a CUDA graph of small kernels) and `loop` (eager
layers, the host ahead of the GPU). Blocks of all variants take turns, each inside a range `block:VARIANT:ROUND`; the
benchmark makes one recording of each variant out of that. The program times every stage by itself, too: the truth that
a comparison is held against.

    python changed_decoder.py --state state.json --times times.json --blocks base=20,slow3=15,copy=5
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 4, 2048, 4096, 32, 3
SMALL, DECODE_LAYERS, LOOP_LAYERS = 1024, 12, 12
PREFILLS, DECODES, LOOPS = 6, 24, 12  # instances in a block
# One element of a kernel that does as much as it is told to: the same kernel on the same grid, only slower.
PLANTED = (
    "template <typename T> T planted(T x, T n) "
    "{ for (int i = 0; i < (int)n; i++) { x = x * T(1.0000001) + T(1e-9); } return x; }"
)


class Program:
    """The three stages, with or without a planted change."""

    def __init__(self, state: Path) -> None:
        torch.manual_seed(0)
        cuda: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.x = torch.randn(BATCH + 1, LENGTH, WIDTH, **cuda) * 0.02
        self.qkv, self.out, self.up, self.down = (
            torch.randn(rows, columns, **cuda) * 0.01
            for rows, columns in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
        )
        self.wide = torch.randn(BATCH + 1, LENGTH * WIDTH // 4, device="cuda")
        self.small = torch.randn(4, SMALL, **cuda)
        self.small_up, self.small_down = (
            torch.randn(*s, **cuda) * 0.01 for s in ((SMALL, 4 * SMALL), (4 * SMALL, SMALL))
        )
        self.square = torch.randn(WIDTH, WIDTH, **cuda) * 0.01
        self.rows = torch.randn(LENGTH, WIDTH, **cuda)
        self.planted = torch.cuda.jiterator._create_jit_fn(PLANTED, n=100.0)
        self.loops = self._calibrated(state)
        self.graphs = {copies: self._captured(copies) for copies in (False, True)}

    def _calibrated(self, state: Path) -> dict[str, float]:
        """How often the planted kernel loops: as long as all else of the step; the same in every process."""
        if state.exists():
            known: dict[str, float] = json.loads(state.read_text())
            return known
        self.loops = {"usual": 0.0, "slow": 0.0, "slow3": 0.0}
        rest = _seconds(lambda: self.prefill("base"), 5)
        one = (
            _seconds(lambda: self.planted(self.wide[:BATCH], n=2000.0), 5)
            - _seconds(lambda: self.planted(self.wide[:BATCH], n=0.0), 5)
        ) / 2000
        usual = max((0.040 - rest), rest) / LAYERS / one
        step = rest + LAYERS * usual * one
        found = {"usual": usual, "slow": 1.05 * usual, "slow3": usual + 0.03 * step / LAYERS / one}
        state.write_text(json.dumps(found))
        return found

    def prefill(self, variant: str) -> None:
        batch = BATCH + (variant == "batch5")
        loops = self.loops[{"slow": "slow", "slow3": "slow3"}.get(variant, "usual")]
        back_end = SDPBackend.MATH if variant == "attention" else SDPBackend.FLASH_ATTENTION
        x = self.x[:batch]
        for _ in range(LAYERS):
            q, k, v = (x @ self.qkv).view(batch, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            with sdpa_kernel(back_end):
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attended.transpose(1, 2).reshape(batch, LENGTH, WIDTH) @ self.out
            x = x + F.gelu(x @ self.up) @ self.down
            self.planted(self.wide[:batch], n=loops)

    def small_layers(self, copies: bool) -> torch.Tensor:
        x = self.small
        for _ in range(DECODE_LAYERS):
            x = F.layer_norm(x + F.gelu(x @ self.small_up) @ self.small_down, (SMALL,))
            if copies:
                x = x.clone()
        return x

    def _captured(self, copies: bool) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.small_layers(copies)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.small_layers(copies)
        return graph

    def decode(self, variant: str) -> None:
        if variant == "no_graph":
            self.small_layers(copies=False)
        else:
            self.graphs[variant == "copy"].replay()

    def loop(self, variant: str) -> None:
        x = self.rows
        for _ in range(LOOP_LAYERS):
            x = F.relu(x @ self.square)
            if variant == "item" and x[0, 0].item() < 0:
                raise AssertionError("relu")

    def block(self, variant: str) -> dict[str, float]:
        """Each stage some times; seconds of one instance, by the clock of the program."""
        found = {}
        for stage, work, count in (
            ("prefill", self.prefill, PREFILLS),
            ("decode", self.decode, DECODES),
            ("loop", self.loop, LOOPS),
        ):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                with torch.cuda.nvtx.range(stage):
                    work(variant)
            torch.cuda.synchronize()
            found[stage] = (time.perf_counter() - began) / count
        return found


def _seconds(work: Callable[[], Any], times: int) -> float:
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--times", type=Path)
    parser.add_argument("--blocks", required=True, help="VARIANT=COUNT,…")
    arguments = parser.parse_args()
    wanted = {name: int(count) for name, _, count in (part.partition("=") for part in arguments.blocks.split(","))}
    torch.set_grad_enabled(False)
    program = Program(arguments.state)
    for variant in wanted:  # compilation and first use, out of the way
        program.block(variant)
    times: dict[str, list[dict[str, float]]] = {variant: [] for variant in wanted}
    for round_number in range(max(wanted.values())):
        for variant, count in wanted.items():
            # Spread over the whole time: a clock that drifts is not the fault of one variant.
            if (round_number + 1) * count // max(wanted.values()) > round_number * count // max(wanted.values()):
                with torch.cuda.nvtx.range(f"block:{variant}:{round_number}"):
                    times[variant].append(program.block(variant))
    if arguments.times:
        arguments.times.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
