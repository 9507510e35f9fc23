"""What the programs are made of: the bench they run on, and plain model parts as one finds them in repositories."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], object]


@dataclass
class Bench:
    """Where a program runs, how it marks its stages, and the seconds that it spends on the host on purpose."""

    device: torch.device
    tiny: bool
    ranges: str = "record_function"
    planted: dict[str, list[float]] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.ranges == "nvtx" and self.cuda:
            torch.cuda.nvtx.range_push(name)
            try:
                yield
            finally:
                torch.cuda.nvtx.range_pop()
        else:
            with torch.profiler.record_function(name):
                yield

    @contextlib.contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Clocks work of the host that uses no GPU: the planted quantity, as it really was."""
        begin = time.perf_counter()
        yield
        self.planted.setdefault(name, []).append(time.perf_counter() - begin)

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def ids(self, vocabulary: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, vocabulary, shape, device=self.device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self.cuda else tensor

    def build(self, make: Callable[[], Any], dtype: torch.dtype = torch.bfloat16) -> Any:
        with self.device:
            return make().to(dtype)

    def captured(self, work: Step) -> Step:
        """`work` as a CUDA graph; itself where there is no GPU."""
        if not self.cuda:
            return work
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            work()
        return graph.replay


@dataclass
class Program:
    """One step of it; the same step mended, where that is a small change; whether its author calls `prof.step()`."""

    step: Step
    mended: Step | None = None
    marks_steps: bool = False


def inferring(step: Step, mended: Step | None = None, marks_steps: bool = False) -> Program:
    return Program(torch.no_grad()(step), torch.no_grad()(mended) if mended else None, marks_steps)


class Attention(nn.Module):
    """Over the whole sequence, or with a cache that grows by concatenation (`past`)."""

    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, past: list[torch.Tensor] | None = None) -> torch.Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and length == k.shape[2])
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class Gelu(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class SwiGlu(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.w1(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool = True, hidden: int = 0, mlp: type[nn.Module] = Gelu) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, causal)
        self.mlp = mlp(dim, hidden or 4 * dim)

    def forward(self, x: torch.Tensor, past: list[torch.Tensor] | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), past)
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, dim: int, layers: int, heads: int, **block: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, **block) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def hidden(self, ids: torch.Tensor, cache: list[list[torch.Tensor]] | None = None) -> torch.Tensor:
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i])
        return self.norm(x)

    def forward(self, ids: torch.Tensor, cache: list[list[torch.Tensor]] | None = None) -> torch.Tensor:
        return self.head(self.hidden(ids, cache))


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


class StaticAttention(nn.Module):
    """One new token against a cache of fixed length, as a CUDA graph needs it."""

    def __init__(self, dim: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("k", torch.zeros(batch, heads, length, dim // heads))
        self.register_buffer("v", torch.zeros(batch, heads, length, dim // heads))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, _, dim = x.shape
        q, k, v = self.qkv(x).view(batch, 1, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        self.k.index_copy_(2, position, k)
        self.v.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, 1, dim))


class StaticDecoder(nn.Module):
    """Decodes one token for each sequence of the batch; keeps its position on the GPU."""

    def __init__(self, vocabulary: int, dim: int, layers: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(vocabulary, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers + 1))
        self.attentions = nn.ModuleList(StaticAttention(dim, heads, batch, length) for _ in range(layers))
        self.mlps = nn.ModuleList(SwiGlu(dim, 3 * dim) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def start(self, device: torch.device) -> StaticDecoder:
        self.position = torch.full((1,), self.length // 2, device=device, dtype=torch.long)
        self.slots = torch.arange(self.length, device=device)
        return self

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        mask = (self.slots <= self.position)[None, None, None, :]
        x = self.embed(token)
        for i, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * i](x), self.position, mask)
            x = x + mlp(self.norms[2 * i + 1](x))
        self.position.add_(1).remainder_(self.length)
        return self.head(self.norms[-1](x))[:, -1]


WORDS = re.compile(r"\w+|[^\w\s]")


def wordpiece(text: str, pieces: set[str], limit: int) -> list[int]:
    """The plain Python tokeniser: the longest known piece first."""
    found: list[int] = []
    for word in WORDS.findall(text.lower()):
        begin = 0
        while begin < len(word):
            end = len(word)
            while end > begin + 1 and word[begin:end] not in pieces:
                end -= 1
            found.append(hash(word[begin:end]) % 30_000)
            begin = end
    return (found + [0] * limit)[:limit]


def some_text(words: int, seed: int) -> str:
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    state, text = seed * 7919 + 1, []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        text.append("".join(letters[(state >> shift) % 26] for shift in range(3, 3 + state % 9 + 2)))
    return " ".join(text)
