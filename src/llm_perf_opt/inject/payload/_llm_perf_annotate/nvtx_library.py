"""NVTX ranges of a domain through the library that CUDA and the wheels of PyTorch bring along.

PyTorch itself opens ranges of the default domain only, and a program need not have the nvtx package (nor one that is
as new as the tool that is attached: then its domains do nothing).
"""

from __future__ import annotations

import ctypes
import sys
from glob import escape, glob
from typing import Any, Callable

_NAMES = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")  # of CUDA 13, and of those before
_REGISTERED = 3  # the message is the handle of a string


class _Attributes(ctypes.Structure):
    """nvtxEventAttributes_t."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category_and_color", ctypes.c_uint32 * 3),
        ("payload", ctypes.c_uint64 * 2),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    )


def open_domain(name: str) -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """What opens and closes ranges of the domain; None where there is no library, or no tool to see them."""
    for path in _paths():
        try:
            library = ctypes.PyDLL(path)  # calls take no time: nobody else need run meanwhile
            create, register = library.nvtxDomainCreateA, library.nvtxDomainRegisterStringA
            push_range, pop_range = library.nvtxDomainRangePushEx, library.nvtxDomainRangePop
        except (OSError, AttributeError):
            continue
        create.restype = register.restype = ctypes.c_void_p
        handle = create(name.encode())
        return None if handle is None else _ways(ctypes.c_void_p(handle), register, push_range, pop_range)
    return None


def _paths() -> list[str]:
    wheels = [f"{escape(folder)}/nvidia/*/lib/" for folder in sys.path if folder]
    return [*(path for name in _NAMES for wheel in wheels for path in glob(wheel + name)), *_NAMES]  # noqa: PTH207


def _ways(
    domain: Any, register: Any, push_range: Any, pop_range: Any
) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    known: dict[str, Any] = {}

    def push(name: str) -> None:
        if name not in known:
            text = register(domain, name.encode("utf-8", "replace"))
            known[name] = _Attributes(3, ctypes.sizeof(_Attributes), message_type=_REGISTERED, message=text)
        push_range(domain, ctypes.byref(known[name]))

    def pop() -> None:
        pop_range(domain)

    return push, pop
