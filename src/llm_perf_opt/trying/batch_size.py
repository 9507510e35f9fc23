"""Larger batches, where the user says which option of the program sets their size: time per item is what counts.

No outputs can be compared: the program computes something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.errors import UserError
from llm_perf_opt.trying.levers import Lever

_FACTORS = (2, 4)


class _Place(str):
    """The word of the command that the size is part of."""


def batch_levers(option: str, command: Sequence[str]) -> list[Lever]:
    """Twice and four times the size in the command: `--batch-size 8`, `--batch-size=8` or `batch_size=8`."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == option and equals:
            return [
                _lever(option, value, f, [*command[:place], _Place(f"{name}="), *command[place + 1 :]])
                for f in _FACTORS
            ]
        if word == option and place + 1 < len(command):
            rest = [*command[: place + 1], _Place(""), *command[place + 2 :]]
            return [_lever(option, command[place + 1], f, rest) for f in _FACTORS]
    raise UserError(
        f"The command has no option {option} that sets a batch size.",
        "Write it out in the command, with its value: --batch-size 8",
    )


def _lever(option: str, value: str, factor: int, command: Sequence[str]) -> Lever:
    if not value.isdigit() or not int(value):
        raise UserError(f"{option} is {value!r} in the command, which is not a batch size.", "Give a whole number.")
    size = str(int(value) * factor)
    return Lever(
        name=f"batch-size-{size}",
        file=Path(),
        about=f"{option} {size} in place of {value}.",
        title=f"batch size {size} in place of {value}, per item",
        changes="what is computed: other batches",
        patch=f"{option} {size}",
        command=tuple(f"{word}{size}" if isinstance(word, _Place) else word for word in command),
        items=float(factor),
    )
