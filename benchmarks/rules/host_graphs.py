"""A CUDA graph a step, and a host that handles the tokens of one step before it starts the next."""

import torch
import torch.nn.functional as F

from place import Place, Step, work_on_the_host

RULE = "host.graphs"


def _parts(at: Place) -> tuple[Step, torch.Tensor]:
    n = at.size(4096, 16)
    x, weights = at.randn(64, n), [at.weight(n, n) for _ in range(96)]
    tokens = torch.zeros(64, dtype=torch.int64, device=at.device)

    def forward() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(hidden, weight)
        tokens.copy_(hidden.argmax(-1))

    return at.graph(forward), tokens


def before(at: Place) -> Step:
    replay, tokens = _parts(at)

    def step() -> None:
        replay()
        tokens.tolist()
        work_on_the_host(0.003)

    return step


def after(at: Place) -> Step:
    replay, tokens = _parts(at)
    taken = [tokens.to("cpu", copy=True).pin_memory() if at.gpu else tokens.clone() for _ in range(2)]
    done = [torch.cuda.Event() for _ in range(2)] if at.gpu else []
    turn = [0]

    def step() -> None:
        replay()
        now = turn[0] = 1 - turn[0]
        taken[now].copy_(tokens, non_blocking=True)
        if done:
            done[now].record()
            done[1 - now].synchronize()
        taken[1 - now].tolist()
        work_on_the_host(0.001)

    return step
