"""The stream in use, asked for as torch's own compiled code asks: every layer of `torch.cuda` left out is time saved.

A decode step of a graph takes a millisecond; what a range may cost it is a hundredth of that.
"""

from __future__ import annotations

from typing import Any, Callable

_MOST_STREAMS = 256  # torch hands out 32 for each priority; a program may bring streams of its own


class CurrentStream:
    """Of the calling thread. Only for a process in which CUDA is initialized."""

    def __init__(self, torch: Any) -> None:
        inner = torch._C
        self._of: Callable[[int], Any] = getattr(torch.cuda, "current_stream", lambda device: None)
        self._raw: Callable[[int], int] | None = getattr(inner, "_cuda_getCurrentRawStream", None)
        self._known: dict[tuple[int, int], Any] = {}
        self.device: Callable[[], int] = getattr(inner, "_cuda_getDevice", torch.cuda.current_device)
        self.is_capturing: Callable[[], bool] = getattr(
            inner, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
        )

    def of(self, device: int) -> Any:
        """To record an event on; None, which is the one in use to torch, where it is dear to know."""
        if self._raw is None:
            return None
        key = device, self._raw(device)
        stream = self._known.get(key)
        if stream is None:
            if len(self._known) >= _MOST_STREAMS:
                self._known.clear()
            stream = self._known[key] = self._of(device)
        return stream
