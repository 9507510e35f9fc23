"""Python's garbage collector off once the model runs: it stops the launches of a loop for milliseconds at a time."""

from __future__ import annotations

import gc
from typing import Any

TITLE = "garbage collection off in the loop"
RULES = ("host.python", "host.unknown")
NEEDS = ("garbage collections",)
CHANGES = "nothing"
PATCH = "gc.collect(); gc.freeze(); gc.disable()  # after the warm-up; gc.collect() now and then"


def apply(program: Any) -> None:
    def stop(module: Any) -> None:
        gc.freeze()
        gc.disable()

    program.on_model(stop)


def evidence(program: Any) -> tuple[bool, str]:
    if gc.isenabled():
        return False, "the program switches it on again" if program.models else "no model was called"
    return True, f"{program.counts.get('garbage collections', 0)} collections while the model ran"
