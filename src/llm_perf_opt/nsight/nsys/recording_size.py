"""How much a profiler has written so far, in whatever folder it keeps it.

nsys writes its raw stream to a file of the temporary folder and turns it into a report at the end, so the
output folder tells nothing while it records. The open files of the process and all it started do.
"""

from __future__ import annotations

from pathlib import Path

_STREAM_ENDINGS = (".qdstrm", "_storage.dat", ".nsys-rep")


def recording_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes of the recordings held open by a process and its descendants; 0 where none can be seen."""
    seen: dict[tuple[int, int], int] = {}
    for member in _family(pid, proc):
        try:
            links = list((proc / str(member) / "fd").iterdir())
        except OSError:
            continue  # ended meanwhile
        for link in links:
            try:
                if str(link.readlink()).removesuffix(" (deleted)").endswith(_STREAM_ENDINGS):
                    status = link.stat()
                    seen[status.st_dev, status.st_ino] = status.st_size
            except OSError:
                continue
    return sum(seen.values())


def _family(pid: int, proc: Path) -> set[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                # The name in brackets may hold anything, brackets and spaces included.
                fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                parent = int(fields[1])
            except (OSError, IndexError, ValueError):
                continue  # ended meanwhile
            children.setdefault(parent, []).append(int(folder.name))
    family: set[int] = set()
    todo = [pid]
    while todo:
        member = todo.pop()
        if member not in family:
            family.add(member)
            todo += children.get(member, [])
    return family
