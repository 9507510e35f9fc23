"""What copies and fills of a region add up to: part of the finished result (`model.py`)."""

from __future__ import annotations

from attrs import define


@define(kw_only=True)
class MemoryWork:
    """Copies and fills: GPU work that is not a kernel."""

    count: int = 0
    time_ns: int = 0
    bytes: int = 0
    host_count: int = 0  # of those, copies between host and device
    host_time_ns: int = 0
    host_bytes: int = 0
    upload_bytes: int = 0  # of those, to the device
    peer_count: int = 0  # of those, from one device to another
    peer_time_ns: int = 0
    migration_count: int = 0  # of those, pages of unified memory
    migration_time_ns: int = 0
    migration_bytes: int = 0
    pageable_time_ns: int = 0  # of those, from or to memory of the host that is not pinned
    pinned_time_ns: int = 0  # of those, pinned; what is neither is not known
    device_count: int = 0  # of those, copies within a device: each byte is read and written
    device_time_ns: int = 0
    device_bytes: int = 0
