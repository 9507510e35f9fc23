"""A DataLoader that prepares each batch while the GPU waits, and one with workers."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from place import Place, Step, work_on_the_host

RULE = "host.data"


class _Samples(Dataset):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> torch.Tensor:
        work_on_the_host(0.001)  # decode, augment
        return torch.full((self.width,), float(number % 7))


def _training(at: Place, workers: int) -> Step:
    n = at.size(4096, 16)
    loader = DataLoader(_Samples(n), batch_size=8, num_workers=workers, pin_memory=at.gpu and workers > 0)
    batches, weights = iter(loader), [at.weight(n, n) for _ in range(12)]
    x = at.randn(at.size(8192, 8), n)

    def step() -> None:
        batch = next(batches).to(at.device, torch.bfloat16, non_blocking=True)
        hidden = x + batch.mean(0)
        for weight in weights:
            hidden = F.linear(hidden, weight)

    return step


def before(at: Place) -> Step:
    return _training(at, 0)


def after(at: Place) -> Step:
    return _training(at, at.size(6, 0))
