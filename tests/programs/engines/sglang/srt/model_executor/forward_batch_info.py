"""What a forward pass is about, field by field as in SGLang."""

from dataclasses import dataclass
from enum import IntEnum, auto

import torch


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND = auto()
    SPLIT_PREFILL = auto()


@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    batch_size: int
    input_ids: torch.Tensor
    extend_num_tokens: int | None = None
