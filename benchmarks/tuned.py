"""Ten programs that are well tuned: none of them may be told to mend something (`rules.py`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from place import Place, Step


def training(at: Place) -> Step:
    """An MLP in bf16, with a fused optimiser."""
    n = at.size(4096, 16)
    x = at.randn(at.size(16384, 16), n)
    layers = [torch.nn.Parameter(at.weight(n, n)) for _ in range(8)]
    optimizer = torch.optim.AdamW(layers, fused=at.gpu, foreach=False)

    def step() -> None:
        hidden = x
        for layer in layers:
            hidden = F.linear(hidden, layer)
        hidden.backward(x)
        optimizer.step()
        optimizer.zero_grad()

    return step


def prefill(at: Place) -> Step:
    """Attention blocks over long prompts, heads as they lie."""
    batch, length, heads, size = 2, at.size(8192, 16), 32, at.size(128, 8)
    x = at.randn(batch, length, heads * size)
    inwards, outwards = at.weight(3 * heads * size, heads * size), at.weight(heads * size, heads * size)

    def step() -> None:
        hidden = x
        for _ in range(2):
            parts = F.linear(hidden, inwards).chunk(3, -1)
            query, key, value = (part.view(batch, length, heads, size).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
            hidden = F.linear(mixed.reshape(batch, length, heads * size), outwards)

    return step


def attention_backward(at: Place) -> Step:
    """Fused attention, forward and backward."""
    query, key, value = (at.randn(4, 16, at.size(4096, 16), 128).requires_grad_() for _ in range(3))
    gradient = torch.randn_like(query)

    def step() -> None:
        query.grad = key.grad = value.grad = None
        F.scaled_dot_product_attention(query, key, value, is_causal=True).backward(gradient)

    return step


def grouped_queries(at: Place) -> Step:
    """Prefill with few heads of keys and values, which are not copied."""
    query = at.randn(4, 32, at.size(4096, 16), 128)
    key, value = (at.randn(4, 8, at.size(4096, 16), 128) for _ in range(2))

    def step() -> None:
        for _ in range(4):
            F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return step


def eight_bits(at: Place) -> Step:
    """Large products in fp8."""
    n = at.size(8192, 16)
    if not at.gpu:
        return training(at)
    x = at.randn(n, n).to(torch.float8_e4m3fn)
    weights = [at.weight(n, n).to(torch.float8_e4m3fn) for _ in range(8)]
    one = torch.ones((), device=at.device)

    def step() -> None:
        for weight in weights:
            torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return step


def tf32(at: Place) -> Step:
    """Products in fp32 that use the tensor cores."""
    n = at.size(8192, 16)
    x, weights = at.randn(n, n, dtype=torch.float32), [at.weight(n, n, dtype=torch.float32) for _ in range(4)]

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        for weight in weights:
            F.linear(x, weight)

    return step


def decode_of_many(at: Place) -> Step:
    """Decode of a batch large enough to reuse the weights, as a CUDA graph."""
    n = at.size(8192, 16)
    x, weights = at.randn(at.size(1024, 4), n), [at.weight(n, n) for _ in range(24)]

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(hidden, weight)

    return at.graph(step)


def compiled_block(at: Place) -> Step:
    """A gated MLP with normalisation, compiled."""
    n = at.size(4096, 16)
    x, gate, up, down = at.randn(at.size(16384, 16), n), *(at.weight(2 * n, n) for _ in range(2)), at.weight(n, 2 * n)

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            normed = F.rms_norm(hidden, (n,))
            hidden = hidden + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down)
        return hidden

    compiled = torch.compile(forward) if at.gpu else forward

    def step() -> None:
        with torch.no_grad():
            compiled(x)

    return step


def experts(at: Place) -> Step:
    """A mixture of experts by grouped products."""
    n, count = at.size(4096, 16), 16
    if not at.gpu:
        return training(at)
    x, weights = at.randn(32768, n), torch.stack([at.weight(n, n) for _ in range(count)])
    ends = torch.arange(1, count + 1, device=at.device, dtype=torch.int32) * (32768 // count)

    def step() -> None:
        for _ in range(4):
            torch._grouped_mm(x, weights.transpose(-1, -2), offs=ends)

    return step


def fed_ahead(at: Place) -> Step:
    """Training whose batches come from pinned memory, one step ahead, on a stream of their own."""
    n = at.size(4096, 16)
    batch = torch.randn(at.size(4096, 8), n).to(torch.bfloat16)
    weights = [at.weight(n, n) for _ in range(24)]
    if not at.gpu:
        return training(at)
    batch, side = batch.pin_memory(), torch.cuda.Stream()
    buffers = [batch.to(at.device) for _ in range(2)]
    turn = [0]

    def step() -> None:
        main, now = torch.cuda.current_stream(), turn[0]
        turn[0] = 1 - now
        main.wait_stream(side)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            buffers[1 - now].copy_(batch, non_blocking=True)
        hidden = buffers[now]
        for weight in weights:
            hidden = F.linear(hidden, weight)

    return step


PROGRAMS: tuple[Callable[[Place], Step], ...] = (
    training,
    prefill,
    attention_backward,
    grouped_queries,
    eight_bits,
    tf32,
    decode_of_many,
    compiled_block,
    experts,
    fed_ahead,
)
