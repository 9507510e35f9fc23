"""Programs that infer. Each function sets up and returns a Program; what is true of it stands in truth.toml."""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from parts import Bench, Block, LanguageModel, Program, StaticDecoder, inferring, some_text, wordpiece
from torch import nn


class Moe(nn.Module):
    """Mixture of experts as it stands in many repositories: a loop over experts, `where` in each."""

    def __init__(self, dim: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * 0.02)
        self.w3 = nn.Parameter(torch.randn(experts, dim, hidden) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * 0.02)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.topk(torch.softmax(self.router(x), dim=-1), 2, dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, selected = self.route(x)
        out = torch.zeros_like(x)
        for expert in range(self.experts):
            token, slot = torch.where(selected == expert)
            if token.shape[0] == 0:
                continue
            chosen = x[token]
            y = (F.silu(chosen @ self.w1[expert]) * (chosen @ self.w3[expert])) @ self.w2[expert]
            out.index_add_(0, token, y * weights[token, slot, None])
        return out

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        weights, selected = self.route(x)
        share = torch.zeros(len(x), self.experts, dtype=x.dtype, device=x.device).scatter_(1, selected, weights)
        y = torch.matmul(F.silu(torch.matmul(x, self.w1)) * torch.matmul(x, self.w3), self.w2)
        return torch.einsum("etd,te->td", y, share)


def moe_loop(bench: Bench) -> Program:
    dim, layers = bench.size(1024, 64), bench.size(4, 1)
    moes = [bench.build(lambda: Moe(dim, 2 * dim, bench.size(16, 4))) for _ in range(layers)]
    norms = [bench.build(lambda: nn.LayerNorm(dim)) for _ in range(layers)]
    x = bench.randn(bench.size(1024, 32), dim)

    def run(dense: bool) -> None:
        y = x
        for i, (moe, norm) in enumerate(zip(moes, norms, strict=True)):
            with bench.stage(f"layers.{i}.mlp.experts"):
                y = y + (moe.dense if dense else moe)(norm(y))

    return inferring(lambda: run(False), lambda: run(True))


def clip_small_batch(bench: Bench) -> Program:
    """A CLIP of two towers at batch 4, as a service encodes it."""
    width, batch = bench.size(1024, 64), bench.size(4, 1)
    patch = bench.build(lambda: nn.Conv2d(3, width, bench.size(16, 32), bench.size(16, 32)))
    heads, layers = bench.size(16, 2), bench.size(24, 2)
    image = bench.build(lambda: nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers))))
    text = bench.build(lambda: LanguageModel(512, bench.size(768, 64), bench.size(12, 1), bench.size(12, 2)))
    pixels, ids = bench.randn(batch, 3, 224, 224), bench.ids(512, batch, bench.size(77, 16))

    def images() -> torch.Tensor:
        return F.normalize(image(patch(pixels).flatten(2).transpose(1, 2)).mean(1), dim=-1)

    def texts() -> torch.Tensor:
        return F.normalize(text.hidden(ids)[:, -1], dim=-1)

    def step() -> None:
        with bench.stage("encode_image"):
            images()
        with bench.stage("encode_text"):
            texts()

    def both() -> None:
        images()
        texts()

    return inferring(step, bench.captured(both))


def decoder(bench: Bench, dim: int, layers: int, batch: int, length: int, vocabulary: int) -> StaticDecoder:
    heads = max(dim // 128, 2)
    made = bench.build(lambda: StaticDecoder(vocabulary, dim, layers, heads, batch, length))
    return made.start(bench.device)


def decode_graph(bench: Bench) -> Program:
    model = decoder(bench, bench.size(4096, 64), bench.size(12, 1), 1, bench.size(256, 16), bench.size(32000, 256))
    token = bench.ids(256, 1, 1)
    replay = bench.captured(torch.no_grad()(lambda: token.copy_(model(token).argmax(-1, keepdim=True))))

    def step() -> None:
        for _ in range(bench.size(4, 2)):
            with bench.stage("decode"):
                replay()

    return inferring(step)


def decode_eager(bench: Bench) -> Program:
    vocabulary, dim = bench.size(32000, 256), bench.size(2048, 64)
    model = bench.build(lambda: LanguageModel(vocabulary, dim, bench.size(16, 1), bench.size(16, 2)))
    prompt = bench.ids(256, 1, bench.size(512, 16))
    with torch.no_grad():
        prefix: list[list[torch.Tensor]] = [[] for _ in model.blocks]
        model(prompt, prefix)
    fast = decoder(bench, dim, bench.size(16, 1), 1, bench.size(528, 24), vocabulary)
    token = bench.ids(256, 1, 1)
    replay = bench.captured(torch.no_grad()(lambda: token.copy_(fast(token).argmax(-1, keepdim=True))))
    made = 0

    def step() -> None:
        nonlocal made
        cache = [list(past) for past in prefix]
        last = prompt[:, -1:]
        for _ in range(4):
            with bench.stage(f"decode_token_{made}"):
                last = model(last, cache)[:, -1].argmax(-1, keepdim=True)
            made += 1

    def mended() -> None:
        for _ in range(4):
            replay()

    return inferring(step, mended)


def embedding_large_batch(bench: Bench) -> Program:
    batch, length, dim = bench.size(256, 2), bench.size(256, 16), bench.size(1024, 64)
    model = bench.build(lambda: LanguageModel(30528, dim, bench.size(8, 1), bench.size(16, 2), causal=False))
    ids = bench.ids(30000, batch, length)
    present = (torch.arange(length, device=bench.device)[None] < length - 8).to(torch.bfloat16)[:, :, None]

    def step() -> object:
        hidden = model.hidden(ids) * present
        return F.normalize(hidden.sum(1) / present.sum(1), dim=-1).cpu()

    return inferring(step, marks_steps=True)


def beam_search(bench: Bench) -> Program:
    requests, beams, vocabulary = bench.size(8, 2), 8, bench.size(32000, 256)
    batch = requests * beams
    model = decoder(bench, bench.size(2048, 64), bench.size(8, 1), batch, bench.size(2048, 32), vocabulary)
    for attention in model.attentions:
        attention.k.normal_()
        attention.v.normal_()
    tokens, scores = bench.ids(256, batch, 1), torch.zeros(requests, beams, device=bench.device)
    first = torch.arange(requests, device=bench.device)[:, None] * beams

    def run(reordering: bool) -> None:
        with bench.stage("beam_forward"):
            logits = model(tokens)
        with bench.stage("beam_select"):
            total = scores[:, :, None] + torch.log_softmax(logits.float(), -1).view(requests, beams, vocabulary)
            best, index = total.view(requests, -1).topk(beams)
            scores.copy_(best - best.amax(1, keepdim=True))
            tokens.copy_((index % vocabulary).view(batch, 1))
            origin = (first + index // vocabulary).view(-1)
        if reordering:
            with bench.stage("reorder_cache"):
                for attention in model.attentions:
                    attention.k = attention.k.index_select(0, origin)
                    attention.v = attention.v.index_select(0, origin)

    return inferring(lambda: run(True), lambda: run(False))


def speculative(bench: Bench) -> Program:
    vocabulary = bench.size(32000, 256)
    draft = bench.build(lambda: LanguageModel(vocabulary, bench.size(1024, 64), bench.size(4, 1), bench.size(8, 2)))
    target = bench.build(lambda: LanguageModel(vocabulary, bench.size(4096, 64), bench.size(8, 2), bench.size(32, 2)))
    prompt = bench.ids(256, 1, bench.size(512, 16))
    with torch.no_grad():
        prefixes = []
        for model in (draft, target):
            cache: list[list[torch.Tensor]] = [[] for _ in model.blocks]
            model(prompt, cache)
            prefixes.append(cache)

    def crop(cache: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        return [list(past) for past in cache]

    def step() -> None:
        last = prompt[:, -1:]
        for _ in range(3):
            with bench.stage("draft"):
                cache, proposed = crop(prefixes[0]), [last]
                for _ in range(5):
                    proposed.append(draft(proposed[-1], cache)[:, -1].argmax(-1, keepdim=True))
                guess = torch.cat(proposed, 1)
            with bench.stage("verify"):
                truth = target(guess, crop(prefixes[1])).argmax(-1)
            with bench.stage("accept"):
                agreed = int((guess[:, 1:] == truth[:, :-1]).int().cumprod(1).sum().item())
                last = truth[:, agreed : agreed + 1]

    return inferring(step)


def eager_attention(attention: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As models do it that know no other: every score is written down."""
    batch, length, dim = x.shape
    size = dim // attention.heads
    q, k, v = attention.qkv(x).view(batch, length, 3, attention.heads, size).permute(2, 0, 3, 1, 4)
    scores = torch.matmul(q, k.transpose(2, 3)) * size**-0.5
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(x.dtype)
    return attention.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, dim))


def long_context_math(bench: Bench) -> Program:
    dim, length = bench.size(2048, 64), bench.size(8192, 64)
    model = bench.build(lambda: nn.Sequential(*(Block(dim, bench.size(16, 2)) for _ in range(bench.size(4, 1)))))
    x = bench.randn(1, length, dim)

    mask = torch.full((length, length), -1e9, device=bench.device, dtype=x.dtype).triu(1)

    def run(fused: bool) -> None:
        y = x
        with bench.stage("prefill"):
            for block in model:
                with bench.stage("attn"):
                    normed = block.norm1(y)
                    y = y + (block.attention(normed) if fused else eager_attention(block.attention, normed, mask))
                with bench.stage("ffn"):
                    y = y + block.mlp(block.norm2(y))

    return inferring(lambda: run(False), lambda: run(True))


def top_p_numpy(logits: np.ndarray, p: float, generator: np.random.Generator) -> list[int]:
    chosen = []
    for row in logits:
        order = np.argsort(-row)
        probabilities = np.exp(row[order] - row[order[0]])
        probabilities /= probabilities.sum()
        keep = int(np.searchsorted(np.cumsum(probabilities), p)) + 1
        chosen.append(int(order[generator.choice(keep, p=probabilities[:keep] / probabilities[:keep].sum())]))
    return chosen


def numpy_sampling(bench: Bench) -> Program:
    vocabulary, batch = bench.size(128256, 512), 4
    model = decoder(bench, bench.size(4096, 64), bench.size(4, 1), batch, bench.size(256, 16), vocabulary)
    token, logits = bench.ids(256, batch, 1), bench.randn(batch, vocabulary)
    replay = bench.captured(torch.no_grad()(lambda: logits.copy_(model(token))))
    generator = np.random.default_rng(0)

    def step() -> None:
        with bench.stage("forward"):
            replay()
        with bench.stage("sample"):
            host = logits.float().cpu().numpy()
            with bench.host("numpy"):
                chosen = top_p_numpy(host, 0.95, generator)
            token.copy_(torch.tensor(chosen)[:, None])

    def mended() -> None:
        replay()
        chances = torch.softmax(logits.float(), -1)
        token.copy_((chances / torch.empty_like(chances).exponential_(1)).argmax(-1, keepdim=True))

    return inferring(step, mended)


def compiled(bench: Bench) -> Program:
    """torch.compile with CUDA graphs over a reranker whose weights are read for few tokens."""
    dim = bench.size(8192, 64)
    model = bench.build(lambda: nn.Sequential(*(Block(dim, bench.size(64, 2), causal=False) for _ in range(2))))
    how = {"mode": "reduce-overhead"} if bench.cuda else {"backend": "eager"}
    fast = torch.compile(model, **how)
    x = bench.randn(1, bench.size(32, 8), dim)

    def step() -> None:
        for _ in range(bench.size(6, 2)):
            if bench.cuda:
                torch.compiler.cudagraph_mark_step_begin()
            fast(x)

    return inferring(step, marks_steps=True)


class DitBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.block = Block(dim, heads, causal=False)
        self.modulation = nn.Linear(dim, 6 * dim)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition))[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.block.attention(self.block.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.block.mlp(self.block.norm2(x) * (1 + scale2) + shift2)


def dit_sampling(bench: Bench) -> Program:
    dim, batch, tokens = bench.size(1152, 64), bench.size(4, 1), bench.size(4096, 32)
    blocks = [bench.build(lambda: DitBlock(dim, bench.size(18, 2))) for _ in range(bench.size(8, 1))]
    embed = bench.build(lambda: nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim)))
    frequencies = torch.exp(-torch.arange(128, device=bench.device) / 14.0)
    shown: list[float] = []

    def run(watching: bool) -> None:
        x = bench.randn(batch, tokens, dim)
        for i in range(3):
            with bench.stage(f"denoise_{i}"):
                angle = (1.0 - i / 3) * 1000 * frequencies
                time_in = torch.cat((angle.cos(), angle.sin())).to(torch.bfloat16).expand(batch, -1)
                condition, y = embed(time_in), x
                for block in blocks:
                    y = block(y, condition)
                x = x - y / 3
                if watching:
                    shown.append(x.float().std().item())

    return inferring(lambda: run(True), lambda: run(False))


def waiting_server(bench: Bench) -> Program:
    dim, batch, length = bench.size(1024, 64), bench.size(32, 1), bench.size(512, 16)
    model = bench.build(lambda: LanguageModel(30528, dim, bench.size(8, 1), bench.size(16, 2), causal=False))
    pieces = {some_text(1, i)[:size] for i in range(3000) for size in (1, 2, 3)}
    texts = [some_text(bench.size(700, 60), i) for i in range(4)]
    ready = bench.ids(30000, batch, length)

    def answer(ids: torch.Tensor) -> list[int]:
        return model.hidden(ids)[:, 0].argmax(-1).tolist()

    def step() -> None:
        with bench.host("wait"):
            time.sleep(0.014)
        with bench.host("tokenise"):
            rows = [wordpiece(text, pieces, length) for text in texts]
        answer(torch.tensor([rows[i % len(rows)] for i in range(batch)]).to(bench.device))

    return inferring(step, lambda: answer(ready))


def mamba_scan(bench: Bench) -> Program:
    batch, length, dim, state = bench.size(4, 1), bench.size(160, 8), bench.size(1536, 32), 16
    layers = [bench.build(lambda: nn.ModuleList([nn.Linear(dim, 2 * dim), nn.Linear(dim, dim + 2 * state)]))
              for _ in range(2)]  # fmt: skip
    outs = [bench.build(lambda: nn.Linear(dim, dim)) for _ in range(2)]
    decay = -torch.rand(dim, state, device=bench.device).to(torch.bfloat16)
    x = bench.randn(batch, length, dim)

    def scan(u: torch.Tensor, delta: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        kept = torch.exp(delta[..., None] * decay)
        new = delta[..., None] * b[:, :, None, :] * u[..., None]
        h, ys = torch.zeros_like(kept[:, 0]), []
        for t in range(u.shape[1]):
            h = kept[:, t] * h + new[:, t]
            ys.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(ys, dim=1)

    def run() -> None:
        y = x
        for i, (first, second) in enumerate(layers):
            with bench.stage(f"MambaMixer_{i}"):
                u, z = first(y).chunk(2, dim=-1)
                delta, b, c = second(u).split((dim, state, state), dim=-1)
                y = y + outs[i](scan(u, F.softplus(delta), b, c) * F.silu(z))

    return inferring(run, bench.captured(run))


def kv_offload(bench: Bench) -> Program:
    dim, batch, length, layers = bench.size(1024, 64), bench.size(8, 1), bench.size(4096, 16), bench.size(6, 1)
    heads = bench.size(8, 2)
    model = bench.build(lambda: LanguageModel(bench.size(32000, 256), dim, layers, heads))
    shape = (batch, heads, length, dim // heads)
    host = [[bench.pinned(torch.zeros(shape, dtype=torch.bfloat16)) for _ in range(2)] for _ in range(layers)]
    resident = [[x.to(bench.device) for x in pair] for pair in host]
    tails = [bench.pinned(torch.zeros(batch, heads, 1, dim // heads, dtype=torch.bfloat16)) for _ in range(2 * layers)]
    token = bench.ids(256, batch, 1)

    def run(offloaded: bool) -> None:
        with bench.stage("decode_step"):
            x = model.embed(token)
            for i, block in enumerate(model.blocks):
                with bench.stage(f"layer.{i}"):
                    past = [k.to(bench.device, non_blocking=True) for k in host[i]] if offloaded else list(resident[i])
                    x = block(x, past)
                    for tail, new in zip(tails[2 * i : 2 * i + 2], past, strict=True):
                        tail.copy_(new[:, :, -1:].contiguous(), non_blocking=True)
            token.copy_(model.head(model.norm(x))[:, -1].argmax(-1, keepdim=True))

    return inferring(lambda: run(True), lambda: run(False))


class Int8Linear(nn.Module):
    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (out, dim), dtype=torch.int8))
        self.register_buffer("scale", torch.full((out, 1), 0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


def dequantised(bench: Bench) -> Program:
    dim, hidden, layers = bench.size(8192, 64), bench.size(28672, 128), bench.size(3, 1)
    names = {"qkv": (dim, 3 * dim), "out": (dim, dim), "up": (dim, hidden), "down": (hidden, dim)}
    with bench.device:
        quantised = [nn.ModuleDict({n: Int8Linear(*s) for n, s in names.items()}) for _ in range(layers)]
        plain = [nn.ModuleDict({n: nn.Linear(*s, bias=False) for n, s in names.items()}).to(torch.bfloat16)
                 for _ in range(layers)]  # fmt: skip
    norm = bench.build(lambda: nn.LayerNorm(dim))
    x = bench.randn(bench.size(8, 2), dim)

    def run(model: list[nn.ModuleDict]) -> None:
        for _ in range(2):
            with bench.stage("decode"):
                y = x
                for layer in model:
                    q, _, v = layer["qkv"](norm(y)).chunk(3, dim=-1)
                    y = y + layer["out"](torch.sigmoid(q) * v)
                    y = y + layer["down"](F.gelu(layer["up"](norm(y))))

    return inferring(lambda: run(quantised), lambda: run(plain))


def pageable_features(bench: Bench) -> Program:
    dim, batch, patches = bench.size(1024, 64), bench.size(64, 2), bench.size(576, 16)
    model = bench.build(lambda: nn.Sequential(*(Block(dim, bench.size(16, 2), causal=False) for _ in range(3))))
    features = [torch.randn(batch, patches, dim) for _ in range(2)]
    resident = [x.to(bench.device, torch.bfloat16) for x in features]
    count = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal count
        count += 1
        model(features[count % 2].to(bench.device).to(torch.bfloat16)).mean(1)

    @torch.no_grad()
    def mended() -> None:
        nonlocal count
        count += 1
        model(resident[count % 2]).mean(1)

    return Program(step, mended)


def two_streams(bench: Bench) -> Program:
    dim, shape = bench.size(1024, 64), (bench.size(128, 2), bench.size(512, 16), bench.size(1024, 64))
    model = bench.build(lambda: nn.Sequential(*(Block(dim, bench.size(16, 2), causal=False) for _ in range(6))))
    host = [bench.pinned(torch.randn(shape).to(torch.bfloat16)) for _ in range(2)]
    slots = [torch.empty(shape, dtype=torch.bfloat16, device=bench.device) for _ in range(2)]
    if not bench.cuda:
        return Program(torch.no_grad()(lambda: model(slots[0].copy_(host[0]))))
    copying = torch.cuda.Stream()
    filled, used = [torch.cuda.Event() for _ in range(2)], [torch.cuda.Event() for _ in range(2)]
    count = 0

    def prefetch(slot: int) -> None:
        with torch.cuda.stream(copying):
            copying.wait_event(used[slot])
            slots[slot].copy_(host[slot], non_blocking=True)
            filled[slot].record()

    prefetch(0)

    @torch.no_grad()
    def step() -> None:
        nonlocal count
        slot = count % 2
        count += 1
        with bench.stage("prefetch"):
            prefetch(1 - slot)
        with bench.stage("encode"):
            torch.cuda.current_stream().wait_event(filled[slot])
            model(slots[slot]).mean(1)
            used[slot].record()

    return Program(step)
