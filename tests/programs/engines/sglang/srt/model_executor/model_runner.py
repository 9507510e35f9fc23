"""Runs a model of a few products, on the GPU where there is one."""

import torch
from small_model import small_model

from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class ModelRunner:
    is_draft_worker = False

    def __init__(self) -> None:
        self.model, self.width, self.device = small_model()

    def init_device_graphs(self) -> None:
        """There are none."""

    def kernel_warmup(self) -> None:
        self.model(torch.ones(1, self.width, device=self.device))

    @torch.no_grad()
    def forward(self, forward_batch: ForwardBatch) -> torch.Tensor:
        logits: torch.Tensor = self.model(torch.ones(len(forward_batch.input_ids), self.width, device=self.device))
        return logits

    def sample(self, logits: torch.Tensor, forward_batch: ForwardBatch) -> list[int]:
        found: list[int] = logits.argmax(-1).tolist()
        return found
