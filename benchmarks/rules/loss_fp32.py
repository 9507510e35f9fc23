"""Cross entropy over a large vocabulary in fp32, and compiled, which keeps the fp32 logits on the chip."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "loss.fp32"


def _loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), words)


def _training(at: Place, compiled: bool) -> Step:
    rows, vocabulary = at.size(8192, 8), at.size(128256, 512)
    width = at.size(1024, 16)
    hidden, head = at.randn(rows, width).requires_grad_(), at.weight(vocabulary, width).requires_grad_()
    words = torch.randint(vocabulary, (rows,), device=at.device)
    loss = torch.compile(_loss) if compiled and at.gpu else _loss

    def step() -> None:
        hidden.grad = head.grad = None
        loss(F.linear(hidden, head), words).backward()

    return step


def before(at: Place) -> Step:
    return _training(at, compiled=False)


def after(at: Place) -> Step:
    return _training(at, compiled=True)
