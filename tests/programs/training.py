"""A training loop, and one whose optimizer fails."""

import contextlib

import torch
from parts import part
from torch import nn

torch.manual_seed(0)


class Careless(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        raise ValueError("on purpose")


model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
part("steps")
for _ in range(2):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
part("failures")
with contextlib.suppress(RuntimeError):
    loss.backward()
with contextlib.suppress(ValueError):
    Careless(model.parameters(), lr=0.1).step()
part("after them")
torch.autograd.backward(model(torch.randn(4, 8)).sum())
optimizer.step()
