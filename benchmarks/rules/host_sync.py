"""A check of the values behind every layer, for which the host waits."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "host.sync"


def _layers(at: Place, check: bool) -> Step:
    n = at.size(1024, 16)
    x, weights = at.randn(at.size(16384, 16), n), [at.weight(n, n) for _ in range(32)]

    def step() -> None:
        hidden, worst = x, []
        for weight in weights:
            hidden = F.linear(hidden, weight)
            worst.append(hidden.amax())
            if check and worst[-1].item() > 1e4:
                raise OverflowError
        if not check:
            torch.stack(worst)

    return step


def before(at: Place) -> Step:
    return _layers(at, check=True)


def after(at: Place) -> Step:
    return _layers(at, check=False)
