"""Is a result of an earlier attempt whole? Only if its step ended well and the file is still what it was then."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.nsys_export import looks_like_sqlite
from llm_perf_opt.rundir.compress import unpacks_to
from llm_perf_opt.rundir.layout import PACKED
from llm_perf_opt.rundir.manifest import Manifest, Step

CUT_OFF = ("running", "failed")  # of a table: by a kill, or by an interrupt
_WANTED_END = "RECORDING_TOO_LARGE"  # stopped at the size that was asked for: it would be again


def ended_well(step: Step | None) -> bool:
    """Did a command leave all that was asked of it?"""
    if step is None:
        return False
    wanted = step.status == "partial" and any(d.code == _WANTED_END for d in step.diagnostics)
    return step.status in ("captured", "done") or wanted


def whole_file(run: Path, name: str, step: Step, manifest: Manifest) -> Path | None:
    """A file of a step as it was when the step ended, or packed since; None where it is not."""
    size = step.files.get(Path(name).name)
    file = run / name
    if size and not file.is_symlink() and file.is_file() and file.stat().st_size == size:
        return file if _opens(file) else None
    packed = manifest.compressed.get(name)
    if not file.exists() and packed is not None and packed.get("bytes") == size:
        for ending in PACKED:
            other = file.with_name(file.name + ending)
            if other.is_file() and not other.is_symlink() and other.stat().st_size == packed.get("packed_bytes"):
                return other if unpacks_to(other, size or 0, str(packed.get("sha256"))) else None
    return None


def _opens(file: Path) -> bool:
    """Is it what its name says? What was packed was, and is the same."""
    if file.suffix == ".sqlite":
        with file.open("rb") as content:
            return looks_like_sqlite(content.read(4096))
    if file.suffix == ".ncu-rep":
        try:
            read_container(file, file.name)
        except (UnreadableInput, OSError):
            return False
    return True
