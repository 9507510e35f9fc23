"""Runs a model that does next to nothing."""

from typing import Any

import torch


class GPUModelRunner:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))

    def capture_model(self) -> int:
        return 0

    def propose_draft_token_ids(self) -> None:
        """Nobody guesses here."""

    @torch.no_grad()
    def execute_model(self, scheduler_output: Any) -> torch.Tensor:
        logits: torch.Tensor = self.model(torch.ones(scheduler_output.total_num_scheduled_tokens, 64))
        return logits
