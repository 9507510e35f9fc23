"""Events on the stream in use, asked for as torch's own compiled code asks: every layer of `torch.cuda` left out is time saved.

A decode step of a graph takes a millisecond; what a range may cost it is a hundredth of that. Between two ranges a
program runs so much else that nothing of this is in the processor's caches: what counts is how much of it is touched.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Callable

_REBASE_NS = 2_000_000_000  # elapsed times are 32-bit floats: far from their base they are coarse
_MOST_STREAMS = 256  # torch hands out 32 for each priority; a program may bring streams of its own


class Device:
    """A GPU: its streams, its events that can be used again, and the event from which moments are counted."""

    __slots__ = ("base", "number", "rebase_at", "spare", "streams")

    def __init__(self, number: int) -> None:
        self.number = number
        self.streams: dict[int, Any] = {}
        self.spare: list[Any] = []
        self.base: tuple[Any, int] | None = None
        self.rebase_at = 0


class Events:
    """What torch has for it. Nothing but `can_be` is called before CUDA is initialized. `note`: of facts about a GPU."""

    def __init__(self, torch: Any, note: Callable[..., None]) -> None:
        inner, cuda = torch._C, torch.cuda
        self.can_be: Callable[[], bool] = cuda.is_initialized
        self.is_capturing: Callable[[], bool] = getattr(
            inner, "_cuda_isCurrentStreamCapturing", cuda.is_current_stream_capturing
        )
        self._create: Callable[..., Any] = cuda.Event
        self._properties: Callable[[int], Any] = cuda.get_device_properties
        self._stream_of: Callable[[int], Any] = getattr(cuda, "current_stream", lambda device: None)
        self._note = note
        self._devices: dict[int, Device] = {}
        self.record = self._recorder(inner, cuda)

    def _recorder(self, inner: Any, cuda: Any) -> Callable[[int], tuple[Any, Device, Any]]:
        """What records an event on the stream that the calling thread uses: with its device, and what it is counted from.

        It is called with the time, or with 0 for an event that is not counted from anything.
        """
        number_in_use: Callable[[], int] = getattr(inner, "_cuda_getDevice", cuda.current_device)
        raw_in_use: Callable[[int], int] | None = getattr(inner, "_cuda_getCurrentRawStream", None)
        # torch.cuda.Event adds to it only what finds a stream.
        record: Callable[..., Any] = cuda.Event.record
        if raw_in_use is not None:
            record = getattr(getattr(inner, "_CudaEventBase", None), "record", record)
        create, new_stream, set_base, devices = self._create, self._new_stream, self._set_base, self._devices

        def record_now(now: int) -> tuple[Any, Device, Any]:
            number = number_in_use()
            try:
                device = devices[number]
            except KeyError:
                device = devices.setdefault(number, Device(number))
            if now > device.rebase_at:
                set_base(device)
            try:
                event = device.spare.pop()
            except IndexError:
                event = create(enable_timing=True)
            if raw_in_use is None:
                record(event)
                return event, device, device.base
            raw = raw_in_use(number)
            try:
                stream = device.streams[raw]
            except KeyError:
                stream = new_stream(device, raw)
            record(event, stream)
            return event, device, device.base

        return record_now

    def _set_base(self, device: Device) -> None:
        """An event whose moment is known by the host clock: where the GPU has nothing to do, it happens at once."""
        event = self._create(enable_timing=True)
        event.record()
        at = monotonic_ns()
        if device.base is None:
            self._note(uuid=str(getattr(self._properties(device.number), "uuid", "")))
        device.base = event, at
        device.rebase_at = at + _REBASE_NS

    def forget(self) -> None:
        """In a child that is forked: no event of its parent is its own."""
        self._devices.clear()

    def _new_stream(self, device: Device, raw: int) -> Any:
        if len(device.streams) >= _MOST_STREAMS:
            device.streams.clear()
        stream = device.streams[raw] = self._stream_of(device.number)
        return stream
