"""Measures what a GPU reaches: large matrix products in every data type it has, and a plain copy.

Each figure is the best of several sizes and rounds, timed by CUDA events around many launches, after a
warm-up: what a well-written kernel can be expected to reach on this very card, at its own clocks and power.
Values are random, not zeros: zeros draw less power and make the card look faster than it is at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from attrs import Factory, define

_ROUNDS = 3
_ROUND_SECONDS = 0.15  # of one round: long enough to reach a steady clock
_WARM_UP = 3


class Clock(Protocol):
    """Times some runs of a function, in seconds."""

    def __call__(self, run: Callable[[], object], runs: int) -> float: ...


@define
class Case:
    """One thing to measure."""

    kind: str  # "tensor_bf16" … or "bandwidth"
    size: int
    amount: float  # FLOPs or bytes of one run
    prepare: Callable[[], Callable[[], object]]


@define
class Measured:
    """The best rate of each kind, and every single measurement."""

    best: dict[str, float] = Factory(dict)
    details: list[dict[str, Any]] = Factory(list)
    skipped: dict[str, str] = Factory(dict)  # kind -> why


def event_clock(torch: Any) -> Clock:
    """CUDA events: the GPU's own time, without the host's."""

    def measure(run: Callable[[], object], runs: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return measure


def measure(
    cases: Iterator[Case],
    clock: Clock,
    *,
    round_seconds: float = _ROUND_SECONDS,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """The best rate of each kind. A case that the device or torch cannot run is noted, with the reason."""
    found = Measured()
    for case in cases:
        try:
            rate = _rate(case, clock, round_seconds)
        except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError) as error:
            # Too little memory for a size, or a type that this GPU or this torch does not have.
            found.skipped.setdefault(
                case.kind, str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            )
            continue
        found.details.append({"kind": case.kind, "size": case.size, "rate": rate})
        found.best[case.kind] = max(found.best.get(case.kind, 0.0), rate)
        say(f"{case.kind} {case.size}: {rate / 1e12:.4g} T/s")
    for kind in found.best:
        found.skipped.pop(kind, None)
    return found


def _rate(case: Case, clock: Clock, round_seconds: float) -> float:
    run = case.prepare()
    once = clock(run, _WARM_UP) / _WARM_UP
    once = min(once, clock(run, 1))
    runs = max(1, min(10_000, int(round_seconds / max(once, 1e-7))))
    return max(case.amount * runs / clock(run, runs) for _ in range(_ROUNDS))


def cases(torch: Any, device: str, capability: tuple[int, int], *, small: bool = False) -> Iterator[Case]:
    """What to measure on a GPU. `small`: sizes for trying the code, not for figures."""
    large = [256] if small else [4096, 8192, 16384]
    medium = [256] if small else [4096, 8192]
    doubles = "tensor_fp64" if capability in ((8, 0), (9, 0), (10, 0)) else "cuda_fp64"
    floats = partial(_floats, torch, device)
    products = (
        # What an SM needs to have, the kind, sizes, and what makes a product.
        ((8, 0), "tensor_bf16", large, lambda size: floats(torch.bfloat16, size)),
        ((7, 0), "tensor_fp16", large, lambda size: floats(torch.float16, size)),
        ((8, 0), "tensor_tf32", medium, lambda size: floats(torch.float32, size, tf32=True)),
        ((0, 0), "cuda_fp32", medium, lambda size: floats(torch.float32, size, tf32=False)),
        ((0, 0), doubles, medium[:1], lambda size: floats(torch.float64, size)),
        ((8, 9), "tensor_fp8", large, partial(_fp8, torch, device)),
        ((7, 5), "tensor_int8", medium, partial(_int8, torch, device)),
    )
    for least, kind, sizes, prepare in products:
        for size in sizes if capability >= least else ():
            yield Case(kind, size, 2.0 * size**3, partial(prepare, size))
    for size in [1 << 20] if small else [1 << 28, 1 << 30, 1 << 32]:
        yield _copy(torch, device, size)


def _floats(torch: Any, device: str, dtype: Any, size: int, tf32: bool | None = None) -> Callable[[], object]:
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def _fp8(torch: Any, device: str, size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    # The second factor has to be stored column by column. Without fast accumulation Hopper leaves the tensor cores
    # every few steps to add up more exactly, and reaches less.
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _int8(torch: Any, device: str, size: int) -> Callable[[], object]:
    a, b = (torch.randint(-128, 127, (size, size), device=device, dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(a, b.t())


def _copy(torch: Any, device: str, size: int) -> Case:
    def prepare() -> Callable[[], object]:
        source = torch.randint(0, 255, (size,), device=device, dtype=torch.uint8)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    # Every byte is read once and written once.
    return Case("bandwidth", size, 2.0 * size, prepare)
