"""Marker ranges around products of many experts' matrices at once (`grouped_mm`).

Such a product is one kernel whose work depends on the data: how many tokens each expert gets. Layer by layer it has to
be sampled, and the module around it launches dozens of other kernels, which would be profiled every time.

Unlike the rest (see `install`) this is not hidden from torch.compile: there, what is hidden would be a break in the
graph. It looks into `marked`, knows that it is compiling, and compiles what is called.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from .ranges import Pop, Push


def mark(torch: Any, name: str, push: Push, pop: Pop) -> None:
    """Open a range called `name` around every such product."""
    functional = torch.nn.functional
    place, attribute = (functional, "grouped_mm") if hasattr(functional, "grouped_mm") else (torch, "_grouped_mm")
    product = getattr(place, attribute, None)
    if product is None:  # before torch 2.8
        return
    is_compiling = torch.compiler.is_compiling

    @wraps(product)
    def marked(*given: Any, **named: Any) -> Any:
        if is_compiling():
            return product(*given, **named)
        push(name)
        try:
            return product(*given, **named)
        finally:
            pop()

    marked.__qualname__ = attribute  # where it is found; of a function in C this may name its class
    setattr(place, attribute, marked)
