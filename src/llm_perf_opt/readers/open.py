"""Open any input: find out what a file is from its content, unpack it where needed, read it.

The name of a file is a hint for error messages only. Compressed files are unpacked into a private
temporary folder (or straight into the reader, for text), with a limit, and removed afterwards.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.readers.memory import refuse_if_too_large
from llm_perf_opt.readers.ncu_container import MAGIC as NCU_MAGIC
from llm_perf_opt.readers.nsys_export import looks_like_sqlite
from llm_perf_opt.readers.plausible import plausible_facts, refuse_implausible
from llm_perf_opt.readers.xz import MAGIC as XZ_MAGIC
from llm_perf_opt.readers.xz import xz_parts
from llm_perf_opt.regions.columns import Recording, Timeline

_GZIP = b"\x1f\x8b"
MEASURED = '{"kind": "llm-perf measured",'  # what times that a program took of itself begin with
_HEAD = 65536
_READS = ".sqlite, .nsys-rep, .ncu-rep, ncu CSV, PyTorch trace (.json), each also as .gz or .xz, or a run directory"

# More than any real recording unpacks to in proportion, and far less than an archive made to fill a disk.
MAX_RATIO, SMALL = 400, 64 << 20

# Bytes of memory from the file to the finished report, measured (benchmarks/results/load.md).
_SQLITE_BASE, _SQLITE_ROW = 150_000_000, 90
_KINETO_BYTE = 3

Progress = Callable[[int], None]


class Observer(Protocol):
    """Told what is being read, so that a long read can show its progress."""

    def begin(self, source: str, total: int | None) -> Progress: ...


class Silent:
    """Nobody is looking."""

    def begin(self, source: str, total: int | None) -> Progress:
        return lambda rows: None


def read_recording(
    path: Path,
    *,
    source: str | None = None,
    launch_config: bool = False,
    streams: bool = False,
    marker_ranges: bool = False,
    observer: Observer | None = None,
) -> Recording:
    """Read one file, whatever it is. `launch_config`: read a timeline so that counters can be joined.

    `streams`: read the stream of every piece of GPU work too. `marker_ranges`: with those that only planning needs.
    """
    source = source or path.name
    _refuse_what_is_no_file(path, source)
    with contextlib.ExitStack() as stack:
        try:
            plain = stack.enter_context(unpacked(path, source))
            recording = _read_plain(plain, source, (launch_config, streams), observer or Silent(), stack)
            recording.gpu_facts = plausible_facts(recording.gpu_facts)
            if isinstance(recording, Timeline):
                refuse_implausible(recording)
                return recording if marker_ranges else without_marker_ranges(recording)
            return recording
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise UnreadableInput(
                f"{source} is a compressed file that is cut off or damaged ({error}).", "Copy it again."
            ) from error
        except OSError as error:
            raise UnreadableInput(f"{source} cannot be read: {error.strerror or error}.") from error


def is_timeline(path: Path) -> bool:
    """Is this a timeline, and no counters? Only the beginning is looked at; False where that does not tell."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(8)
        opener = gzip.open if head.startswith(_GZIP) else lzma.open if head.startswith(XZ_MAGIC) else Path.open
        with opener(path, "rb") as file:
            head = file.read(4096)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return False
    if looks_like_sqlite(head) or (_is_nsys_rep(path.name) and not head.startswith(NCU_MAGIC)):
        return True
    return (_as_text(head) or "").lstrip("\ufeff \t\r\n").startswith(("{", "["))


def _refuse_what_is_no_file(path: Path, source: str) -> None:
    if path.is_dir():
        raise UnreadableInput(
            f"{source} is a directory without recordings.", f"Give a file or a run directory; llm-perf reads {_READS}."
        )
    if not path.exists():
        raise UnreadableInput(f"{source} does not exist.", f"Looked for it at {path.absolute()}.")
    if not path.is_file():
        raise UnreadableInput(f"{source} is not a regular file.", "Give the recording itself.")
    if path.stat().st_size == 0:
        raise UnreadableInput(
            f"{source} is empty (0 bytes): the profiler that should have written it wrote nothing.",
            "Profile again, and look for ==ERROR== or ==WARNING== lines in its output.",
        )


@contextlib.contextmanager
def unpacked(path: Path, source: str) -> Iterator[Path]:
    """The file itself, or a private unpacked copy of it."""
    with path.open("rb") as file:
        head = file.read(8)
    if not head.startswith((_GZIP, XZ_MAGIC)):
        yield path
        return
    parts = _gzip_parts if head.startswith(_GZIP) else xz_parts
    limit = max(SMALL, path.stat().st_size * MAX_RATIO)
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as folder:
        target = Path(folder) / "recording"
        with path.open("rb") as packed, target.open("wb") as out:
            written = 0
            for part in parts(packed):
                written += len(part)
                if written > limit:
                    raise UnreadableInput(
                        f"{source} unpacks to more than {MAX_RATIO} times its size, which no recording does.",
                        "If you trust it, unpack it yourself and give the unpacked file.",
                    )
                out.write(part)
        if target.stat().st_size == 0:
            raise UnreadableInput(f"{source} is a compressed file with nothing in it.", "Profile again.")
        yield target


def _gzip_parts(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as packed:
        while part := packed.read(1 << 20):
            yield part


def _read_plain(
    path: Path, source: str, columns: tuple[bool, bool], watch: Observer, stack: contextlib.ExitStack
) -> Recording:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if looks_like_sqlite(head):
        return _read_sqlite(_with_its_log(path, stack), source, columns, watch)
    if head.startswith(NCU_MAGIC):
        from llm_perf_opt.readers.ncu_rep import read_ncu_rep

        return read_ncu_rep(path, source, progress=watch.begin(source, None))
    if _is_nsys_rep(source):
        from llm_perf_opt.readers.nsys_rep import export_nsys_rep

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llm-perf-")))
        watch.begin(source, None)
        return _read_sqlite(export_nsys_rep(path, source, folder), source, columns, watch)
    text = _as_text(head)
    if source.endswith((".py", ".sh", ".ipynb")):
        raise UnreadableInput(
            f"{source} is a program, not a recording of one.",
            "Record it first: nsys profile -t cuda,nvtx -s none -o run python FILE; nsys export --type sqlite -o run.sqlite run.nsys-rep",
        )
    if text is not None and text.startswith(("NVTX Range,", "Time (%),", "Time,", "Start (ns),", "Start,", "Range,")):
        raise UnreadableInput(
            f"{source} is a table printed by nsys stats, which has lost what a report needs.",
            "Give the .sqlite or .nsys-rep it was made from.",
        )
    if text is not None and text.startswith(MEASURED):
        from llm_perf_opt.readers.measured import read_measured

        return read_measured(path, source)
    if text is not None and text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        from llm_perf_opt.readers.kineto import read_kineto

        watch.begin(source, None)
        size = path.stat().st_size
        refuse_if_too_large(source, size * _KINETO_BYTE, f"{size / 1e9:.1f} GB of JSON")
        with path.open("rb") as file:
            return read_kineto(file, source)
    if text is not None and ("==PROF==" in text or "==WARNING==" in text or "==ERROR==" in text or '"' in text):
        from llm_perf_opt.readers.ncu_csv import read_ncu_csv

        watch.begin(source, None)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            return read_ncu_csv(lines, source)
    kind = "a text file" if text is not None else "a binary file"
    raise UnreadableInput(f"{source} is {kind} that llm-perf does not know.", f"It reads {_READS}.")


def _with_its_log(path: Path, stack: contextlib.ExitStack) -> Path:
    """The database itself; where a write-ahead log lies beside it, a private copy of both.

    SQLite needs a third file to read the two, and would make it beside them: an input is never written to.
    """
    path = path.resolve()
    log = path.with_name(path.name + "-wal")
    if not log.is_file() or not log.stat().st_size:
        return path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llm-perf-")))
    shutil.copyfile(path, folder / "recording")
    shutil.copyfile(log, folder / "recording-wal")
    return folder / "recording"


def _read_sqlite(path: Path, source: str, columns: tuple[bool, bool], watch: Observer) -> Recording:
    from llm_perf_opt.readers.nsys_sqlite import count_rows, read_nsys_sqlite

    launch_config, streams = columns
    rows = count_rows(path, source)
    refuse_if_too_large(source, _SQLITE_BASE + rows * _SQLITE_ROW, f"{rows:,} rows")
    progress = watch.begin(source, rows)
    return read_nsys_sqlite(path, source, launch_config=launch_config, streams=streams, progress=progress)


def _is_nsys_rep(source: str) -> bool:
    return source.lower().removesuffix(".gz").removesuffix(".xz").endswith((".nsys-rep", ".qdrep"))


def _as_text(head: bytes) -> str | None:
    if b"\x00" in head:
        return None
    try:
        return head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut at the end of the head is no sign of a binary file.
        return head[: error.start].decode("utf-8") if error.start > len(head) - 4 else None
