"""How much a profiler has written so far, in whatever folder it keeps it.

nsys writes its raw stream to a file of the temporary folder and turns it into a report at the end, so the
output folder tells nothing while it records. The open files of the process and all it started do.
"""

from __future__ import annotations

from llm_perf_opt.processes import family, open_files

_STREAM_ENDINGS = (".qdstrm", "_storage.dat", ".nsys-rep")


def recording_bytes(pid: int) -> int:
    """Bytes of the recordings held open by a process and its descendants; 0 where none can be seen."""
    files = (file for member in family(pid) for file in open_files(member))
    return sum({identity: size for name, size, identity in files if name.endswith(_STREAM_ENDINGS)}.values())
