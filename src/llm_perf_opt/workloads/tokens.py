"""From text to token ids and back, for models with a tokenizer and for those without.

A model built from a configuration has no tokenizer, but its prompts should still be as long as real text
is. The bytes of the text do for that, and can be read again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.workloads.device import import_transformers

PAD, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3


class ByteTokenizer:
    """Every byte of UTF-8 is a token; 0 is padding, 1 begins a text, 2 ends it."""

    size = FIRST_BYTE + 256

    def encode(self, text: str) -> list[int]:
        return [BOS, *(byte + FIRST_BYTE for byte in text.encode("utf-8"))]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; what is no byte (a model may choose any token) is left out."""
        content = bytes(token - FIRST_BYTE for token in tokens if FIRST_BYTE <= token < self.size)
        return content.decode("utf-8", errors="replace")


class LocalTokenizer:
    """The tokenizer that lies beside a model."""

    def __init__(self, path: Path, trust_remote_code: bool) -> None:
        transformers = import_transformers()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            str(path), trust_remote_code=trust_remote_code, local_files_only=True
        )
        if len(self.encode("a text")) == 0:
            # What transformers makes of a folder without the files of a tokenizer.
            raise ValueError(f"the tokenizer in {path} is empty")

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


Tokenizer = ByteTokenizer | LocalTokenizer


def made_up(length: int, vocabulary: int, seed: str) -> list[int]:
    """Random token ids, the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    return [chance.randrange(vocabulary) for _ in range(length)]


def fitted(tokens: Sequence[int], length: int) -> list[int]:
    """Exactly `length` tokens: the prompt cut, or said again until it is long enough."""
    if not tokens:
        return []
    return [tokens[at % len(tokens)] for at in range(length)]
