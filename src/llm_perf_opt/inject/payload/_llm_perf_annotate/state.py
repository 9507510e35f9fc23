"""What the annotation knows about the thread it runs on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generation import Generation
    from .model import Model


class State(threading.local):
    """One of these exists for every thread."""

    model: Model | None = None  # the outermost module of the call that runs; None: the next call is outermost
    generation: Generation | None = None  # the innermost generate() that runs
    in_backward: bool = False
    graph: Any = None  # the CUDA graph that is being captured


state = State()
