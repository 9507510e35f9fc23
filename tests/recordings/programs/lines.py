"""A program whose every line's kernels are known: a line that launches ends in `#: name`.

    python lines.py eager|graph|train|waits [--steps 20] [--truth FOLDER]

`--truth`: the same text runs with an NVTX range `truth NAME` around each such line, on the same line of the file, from a
copy in FOLDER. What the ranges hold is what the lines launch. `waits` prints how long each planted wait took.
"""

import argparse
import json
import re
import runpy
import sys
import threading
import time
from pathlib import Path

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        qkv = self.qkv(x)  #: qkv
        q, k, v = (part.view(x.shape[0], 8, -1) for part in qkv.chunk(3, dim=-1))
        scores = torch.softmax(q @ k.transpose(1, 2), dim=-1)  #: scores
        mixed = scores @ v  #: mixed
        y = self.out(mixed.reshape(x.shape))  #: out
        return y


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        h = self.norm(x)  #: norm
        a = self.attention(h)
        x = x + a  #: residual
        up = self.up(x)  #: up
        gated = torch.nn.functional.gelu(up)  #: gelu
        y = x + self.down(gated)  #: down
        return y


class Net(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 4 * width, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)  #: head
        return logits


def scale(x, by):
    y = x * by  #: scale
    return y


def step(net, x):
    logits = net(scale(x, 0.5))
    top = logits.float().amax(dim=-1)  #: top
    return top


def eager(net, x, steps):
    with torch.inference_mode():
        for _ in range(steps):
            torch.cuda.nvtx.range_push("step")
            total = step(net, x)
            total = total.sum()  #: total
            torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    return total


def graph(net, x, steps):
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step(net, x)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step(net, x)
        for _ in range(steps):
            torch.cuda.nvtx.range_push("step")
            captured.replay()
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()


def train(net, x, steps):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for _ in range(steps):
        torch.cuda.nvtx.range_push("step")
        out = net(x)
        loss = out.float().pow(2).mean()  #: loss
        loss.backward()  #: backward
        optimizer.step()  #: optimizer
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.012)
        return torch.zeros(4)


def waits(net, x, steps):
    took = {}
    lock = threading.Lock()
    loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=1))
    small = torch.ones(256, device=DEVICE)

    def hold():
        with lock:
            time.sleep(0.02)

    def note(name, began):
        took.setdefault(name, []).append(time.perf_counter() - began)

    with torch.inference_mode():
        for _ in range(steps):
            torch.cuda.nvtx.range_push("step")
            step(net, x)
            torch.cuda.synchronize()
            began = time.perf_counter()
            time.sleep(0.015)  #: sleep
            note("sleep", began)
            step(net, x)
            torch.cuda.synchronize()
            began = time.perf_counter()
            next(loader)  #: loader
            note("loader", began)
            step(net, x)
            holder = threading.Thread(target=hold)
            holder.start()
            while not lock.locked():
                pass
            torch.cuda.synchronize()
            began = time.perf_counter()
            lock.acquire()  #: lock
            note("lock", began)
            lock.release()
            step(net, x)
            torch.cuda.synchronize()
            began = time.perf_counter()
            large = torch.empty(12 << 30, dtype=torch.uint8, device=DEVICE)  #: malloc
            note("malloc", began)
            del large
            torch.cuda.empty_cache()
            began = time.perf_counter()
            for _ in range(200):
                value = small.sum().item()  #: item
            note("item", began)
            torch.cuda.nvtx.range_pop()
    print(json.dumps(took | {"value": value}), flush=True)


def marked(source):
    """The text with a range around every tagged line, each on its own line."""
    tagged = re.compile(r"^( *)(.+?)  #: (\w+)$", re.MULTILINE)
    push, pop = 'torch.cuda.nvtx.range_push("truth {}")', "torch.cuda.nvtx.range_pop()"
    return tagged.sub(lambda m: f"{m[1]}{push.format(m[3])}; {m[2]}; {pop}", source)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("eager", "graph", "train", "waits"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--truth", type=Path)
    asked = parser.parse_args()
    if asked.truth is not None:
        copy = asked.truth / Path(__file__).name
        copy.write_text(marked(Path(__file__).read_text(encoding="utf-8")), encoding="utf-8")
        at = sys.argv.index("--truth")
        sys.argv[at : at + 2] = []
        runpy.run_path(str(copy), run_name="__main__")
        return
    torch.manual_seed(0)
    net = Net(asked.width, asked.layers).to(DEVICE, DTYPE)
    x = torch.randn(512, asked.width, device=DEVICE, dtype=DTYPE)
    {"eager": eager, "graph": graph, "train": train, "waits": waits}[asked.kind](net, x, asked.steps)


if __name__ == "__main__":
    main()
