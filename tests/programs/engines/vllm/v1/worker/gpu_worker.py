"""A worker: the forward pass and the choice of tokens are two calls, as in vLLM since 0.12."""

import time
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

STEP_S = 0.003


class Worker:
    def __init__(self) -> None:
        self.model_runner = GPUModelRunner()

    def determine_available_memory(self) -> int:
        return 1

    def compile_or_warm_up_model(self) -> None:
        self.model_runner.capture_model()

    def execute_model(self, scheduler_output: Any) -> None:
        self.logits = self.model_runner.execute_model(scheduler_output)
        time.sleep(STEP_S)

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.logits.argmax(-1).tolist()
