# ruff: noqa: E402 - the clock is looked at before anything slow is imported
"""Programs that time their own regions and print what they took, as JSON, at their end.

    python benchmarks/programs/self_timed.py decode|dense|compiled|training|graph|threads|energy [--tiny]

Times are those of CUDA events on a GPU and of the host clock without one: what `llm-perf measure` must find too.
Nothing is downloaded: weights are random. `--tiny`: sizes for a CPU.
"""

import time

STARTED = time.time()  # before anything else is imported: what starting up costs can be seen from outside

import os

# Workers that compile beside the program slow it down for a second or two after they have nothing more to do.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import argparse
import contextlib
import ctypes
import itertools
import json
import statistics
import threading

import nvtx
import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["decode", "dense", "compiled", "training", "graph", "threads", "energy"])
parser.add_argument("--tiny", action="store_true")
args = parser.parse_args()
CUDA = torch.cuda.is_available() and not args.tiny
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
torch.manual_seed(0)
if not CUDA:
    torch.set_num_threads(1)


class Timed:
    """Regions with their own timers."""

    def __init__(self):
        self.rows = []
        self.lock = threading.Lock()
        self.spare = []  # events: to make one takes longer than to record it
        self.off = False  # no ranges at all

    def make_events(self, count):
        self.spare = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        for event in self.spare:
            event.record()  # torch asks the driver for it only now

    @contextlib.contextmanager
    def region(self, name, key=None):
        """A range, timed under `key` where that is given."""
        if self.off:
            yield
            return
        if key is None:
            with nvtx.annotate(name, domain="LLM"):
                yield
            return
        first = self._now()  # around the range: what others do when it opens and closes is part of what it takes
        with nvtx.annotate(name, domain="LLM"):
            yield
        last = self._now()
        with self.lock:
            self.rows.append((key, first, last))

    def _now(self):
        if not CUDA:
            return time.perf_counter_ns()
        event = self.spare.pop() if self.spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self):
        wait()
        found = {}
        for key, first, last in self.rows:
            took = first.elapsed_time(last) if CUDA else (last - first) / 1e6
            found.setdefault(key, []).append(took)
        return found


timed = Timed()


def wait():
    if CUDA:
        torch.cuda.synchronize()


TURNS_S = 4.0


def in_turns(step):
    """Milliseconds of a step with its ranges and of the next one without, in this very process.

    From one process to the next a program that the host holds up differs by more than a range can cost, and within one
    second to second. As many as fit into a few seconds: what a range costs is far less than steps differ.
    """
    least, most = (4, 4) if args.tiny else (200, 1500)
    took, until = {True: [], False: []}, time.perf_counter() + TURNS_S
    for number in range(2 * most):
        if number >= 2 * least and number % 4 == 0 and time.perf_counter() > until:
            break
        ranges = number % 4 in (0, 3)  # with, without, without, with
        timed.off = not ranges
        wait()
        began = time.perf_counter()
        with timed.region("decode_step"):
            step()
        wait()
        took[ranges].append(1e3 * (time.perf_counter() - began))
    timed.off = False
    return {"with_ranges_ms": took[True], "without_ranges_ms": took[False]}


class Layer(nn.Module):
    """A decoder layer whose cache is either given and grown by concatenation, or as long as it will ever be."""

    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.size, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(3 * hidden, hidden, bias=False)

    def attention(self, x, cache, position=None):
        batch, length, hidden = x.shape
        split = [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]
        parts = self.qkv(self.norms[0](x)).split(split, -1)
        q, k, v = (p.view(batch, length, -1, self.size).transpose(1, 2) for p in parts)
        if position is not None:
            cache[0].index_copy_(2, position, k)
            cache[1].index_copy_(2, position, v)
            k, v = cache
        elif cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=True)
        return x + self.out(out.transpose(1, 2).reshape(batch, length, hidden)), (k, v)

    def mlp(self, x):
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self, layers, hidden, heads, kv_heads, words):
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads) for _ in range(layers))
        self.head = nn.Linear(hidden, words, bias=False)


def decoder(layers, hidden, heads, kv_heads, words):
    with torch.device(DEVICE):
        return Decoder(layers, hidden, heads, kv_heads, words).to(DTYPE).eval()


def dense():
    """The same with a range for every layer and what is in it: about a hundred in a step."""
    return decode(layers=True)


def decode(layers=False):
    """A loop with the ranges that people write: the stages and a step."""
    size = (2, 64, 4, 2, 100) if args.tiny else (32, 2048, 16, 8, 32000)
    prompt, steps, rounds = (16, 12, 2) if args.tiny else (1024, 96, 5)
    model = decoder(*size)
    ids = torch.randint(0, size[-1], (1, prompt), device=DEVICE)
    loops = []

    def forward(ids, caches, step):
        x, found = model.embedding(ids), []
        for n, layer in enumerate(model.layers):
            if layers:
                with timed.region(f"layer{n}"):
                    with timed.region("attention", "attention of layer1" if n == 1 and step else None):
                        x, cache = layer.attention(x, caches[n])
                    with timed.region("mlp"):
                        x = layer.mlp(x)
            else:
                x, cache = layer.attention(x, caches[n])
                x = layer.mlp(x)
            found.append(cache)
        return model.head(x[:, -1:]).argmax(-1), found

    with torch.inference_mode():
        for _ in range(rounds):
            with timed.region("generate"):
                with timed.region("prefill", "prefill"):
                    token, caches = forward(ids, [None] * size[0], False)
                wait()
                began = time.perf_counter()
                with timed.region("decode", "decode"):
                    for _ in range(steps):
                        with timed.region("decode_step", "decode_step"):
                            token, caches = forward(token, caches, True)
                wait()
                loops.append(time.perf_counter() - began)
        with timed.region("generate"), timed.region("in turns"):
            turns = in_turns(lambda: forward(token, caches, False))
    bytes_a_token = size[0] * 2 * size[3] * (size[1] // size[2]) * torch.finfo(DTYPE).bits // 8
    keys = {"prefill": "generate/prefill", "decode": "generate/decode"}
    keys |= {"decode_step": "generate/decode/decode_step"}
    if layers:
        keys |= {"attention of layer1": "generate/decode/decode_step/layer1/attention"}
    best = statistics.median(loops[1:])
    return {
        "keys": keys,
        "tokens_per_second": steps / best,
        "step_ms": 1e3 * best / steps,
        "growth_bytes": bytes_a_token,
        **turns,
    }


def fixed_step(model, caches):
    """A decode step that allocates nothing that stays: for graphs and compilation."""

    def step(token, position):
        x = model.embedding(token)
        for layer, cache in zip(model.layers, caches, strict=True):
            x, _ = layer.attention(x, cache, position)
            x = layer.mlp(x)
        return model.head(x).argmax(-1)

    return step


def fixed(layers):
    size = (2, 64, 4, 2, 100) if args.tiny else (layers, 2048, 16, 8, 32000)
    room = 64 if args.tiny else 512
    model = decoder(*size)
    shape = (1, size[3], room, size[1] // size[2])
    caches = [tuple(torch.zeros(shape, device=DEVICE, dtype=DTYPE) for _ in range(2)) for _ in range(size[0])]
    token, position = (
        torch.zeros((1, 1), dtype=torch.long, device=DEVICE),
        torch.zeros(1, dtype=torch.long, device=DEVICE),
    )
    return fixed_step(model, caches), token, position, 40 if args.tiny else 400


def loop(run, steps):
    """Decode steps one after the other, in one range; the first time it compiles, or captures."""
    loops = []
    for _ in range(2 if args.tiny else 7):
        wait()
        began = time.perf_counter()
        with timed.region("decode", "decode"):
            for _ in range(steps):
                with timed.region("decode_step", "decode_step"):
                    run()
        wait()
        loops.append(time.perf_counter() - began)
    keys = {"decode": "decode", "decode_step": "decode/decode_step"}
    with timed.region("in turns"):
        turns = in_turns(run)
    best = statistics.median(loops[1:])
    return {"keys": keys, "tokens_per_second": steps / best, "step_ms": 1e3 * best / steps, **turns}


def compiled():
    """The first step compiles."""
    step, token, position, steps = fixed(4)
    backend = "inductor" if CUDA else "eager"
    run = torch.compile(step, backend=backend)
    with torch.inference_mode():
        found = loop(lambda: run(token, position), steps)
    return {**found, "backend": backend, "warmup": {"region": "decode/decode_step", "why": "compilation"}}


def graph():
    """The first step captures; all others replay."""
    step, token, position, steps = fixed(16)
    kept = {}

    def run():
        if not CUDA:
            return step(token, position)
        if "graph" not in kept:
            kept["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(kept["graph"]), timed.region("captured"):
                kept["token"] = step(token, position)
        kept["graph"].replay()
        return kept["token"]

    with torch.inference_mode():
        if CUDA:  # libraries are loaded before anything is captured
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step(token, position)
            torch.cuda.current_stream().wait_stream(side)
        found = loop(run, steps)
    return {**found, "warmup": {"region": "decode/decode_step", "why": "graph capture"} if CUDA else None}


def training():
    """A small GPT-2: forward, backward, optimizer."""
    size = (2, 64, 4, 4, 100) if args.tiny else (12, 768, 12, 12, 50304)
    batch, length, steps = (2, 16, 8) if args.tiny else (8, 1024, 40)
    model = decoder(*size).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=CUDA)
    ids = torch.randint(0, size[-1], (batch, length), device=DEVICE)
    began = loops = 0.0
    for number in range(steps):
        if number == 4:
            wait()
            began = time.perf_counter()
            if CUDA:
                torch.cuda.reset_peak_memory_stats()
        with timed.region("step", "step"):
            with timed.region("forward", "forward"):
                x = model.embedding(ids)
                for layer in model.layers:
                    x, _ = layer.attention(x, None)
                    x = layer.mlp(x)
                loss = F.cross_entropy(model.head(x).view(-1, size[-1]), ids.view(-1))
            with timed.region("backward", "backward"):
                loss.backward()
            with timed.region("optimizer", "optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    wait()
    loops = time.perf_counter() - began
    keys = {"step": "step"} | {name: f"step/{name}" for name in ("forward", "backward", "optimizer")}
    tokens = batch * length * (steps - 4) / loops
    peak = torch.cuda.max_memory_allocated() if CUDA else None
    return {"keys": keys, "tokens_per_second": tokens, "step_ms": 1e3 * loops / (steps - 4), "peak_bytes": peak}


def threads():
    """Two threads, each with its own stream and its own ranges."""
    side, rounds, pairs = (64, 20, 4) if args.tiny else (4096, 300, 200)
    together, ends = threading.Barrier(2), []

    def in_turns(step):
        """As for one thread: both have their ranges, or neither."""
        for number in range(2 * pairs):
            if together.wait() == 0:
                timed.off = number % 2 == 1
                ends.append(time.perf_counter())
            together.wait()
            step()
        if together.wait() == 0:
            timed.off = False
            ends.append(time.perf_counter())
        together.wait()

    def work(name):
        stream = torch.cuda.Stream() if CUDA else contextlib.nullcontext()
        with torch.cuda.stream(stream) if CUDA else stream, torch.inference_mode():
            a = torch.randn(side, side, device=DEVICE, dtype=DTYPE)

            def step(timed_by_itself=False):
                with timed.region(name, name if timed_by_itself else None):
                    with timed.region("product", f"{name} product" if timed_by_itself else None):
                        b = a @ a
                    with timed.region("norm"):
                        F.layer_norm(b, (side,))
                if CUDA:
                    stream.synchronize()

            for _ in range(rounds):
                step(timed_by_itself=True)
            took.append(time.perf_counter() - began)
            in_turns(step)

    both = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    began, took = time.perf_counter(), []
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    turns = [1e3 * (after - before) for before, after in itertools.pairwise(ends)]
    keys = {name: name for name in ("left", "right")} | {
        f"{name} product": f"{name}/product" for name in ("left", "right")
    }
    rates = {"tokens_per_second": 2 * rounds / max(took), "step_ms": 1e3 * max(took) / rounds}
    return {"keys": keys, **rates, "with_ranges_ms": turns[::2], "without_ranges_ms": turns[1::2]}


def counter():
    """Millijoules of the first GPU, by the driver's own library; None without one."""
    try:
        library, handle, value = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()
    except OSError:
        return lambda: None
    library.nvmlInit_v2()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))

    def read():
        known = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value)) == 0
        return value.value if known else None

    return read


def energy():
    """Half a minute of matrix products, copies and pauses, in turns."""
    side, seconds = (64, 1.0) if args.tiny else (8192, 30.0)
    a = torch.randn(side, side, device=DEVICE, dtype=DTYPE)
    large = torch.randn(1 << 10 if args.tiny else 1 << 29, device=DEVICE, dtype=DTYPE)
    read = counter()
    a @ a
    wait()
    before, began = read(), time.perf_counter()
    phases = 0
    with timed.region("loop", "loop"):
        while time.perf_counter() - began < seconds:
            for name, work, pause in (("products", lambda: a @ a, 0.45), ("copies", lambda: large.mul_(1.0), 0.35)):
                with timed.region(name, name):
                    until = time.perf_counter() + pause * (0.05 if args.tiny else 1)
                    while time.perf_counter() < until:
                        work()
                        wait()
            time.sleep(0.005 if args.tiny else 0.25 + 0.05 * (phases % 3))
            phases += 1
    after, took = read(), time.perf_counter() - began
    joules = None if before is None or after is None else (after - before) / 1e3
    keys = {"loop": "loop", "products": "loop/products", "copies": "loop/copies"}
    return {"keys": keys, "tokens_per_second": phases / took, "step_ms": 1e3 * took / phases, "energy_j": joules}


found = {"decode": decode, "dense": dense, "compiled": compiled, "training": training}
found |= {"graph": graph, "threads": threads, "energy": energy}
if CUDA:
    torch.cuda.init()
    timed.make_events(12_000)
result = found[args.kind]()
result["milliseconds"] = timed.milliseconds()
where = torch.cuda.get_device_name() if CUDA else "CPU"
print("RESULT " + json.dumps({**result, "started_at": STARTED, "where": where, "torch": torch.__version__}))
