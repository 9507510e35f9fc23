"""Open any input: find out what a file is from its content, unpack it where needed, read it.

The name of a file is a hint for error messages only. Here only the beginning of a file is looked at: all else,
unpacking too, is done in a process of its own (`sandbox`). Compressed files are unpacked into a private temporary
folder, with a limit, and removed afterwards.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from llm_perf_opt.errors import NOTEBOOK_FIX, UnreadableInput
from llm_perf_opt.readers import sandbox
from llm_perf_opt.readers.ncu_container import MAGIC as NCU_MAGIC
from llm_perf_opt.readers.nsys_export import looks_like_sqlite
from llm_perf_opt.readers.packed import most_unpacked, unpacks_to_too_much
from llm_perf_opt.readers.plausible import plausible_facts
from llm_perf_opt.readers.sandbox import Limits, Notes
from llm_perf_opt.readers.sqlite_open import log_of, refuse_unfinished
from llm_perf_opt.readers.text_encoding import encoding_of
from llm_perf_opt.readers.xz import MAGIC as XZ_MAGIC
from llm_perf_opt.readers.xz import xz_parts
from llm_perf_opt.regions.columns import Recording

_GZIP = b"\x1f\x8b"
MEASURED = '{"kind": "llm-perf measured",'  # what times that a program took of itself begin with
_HEAD = 65536
_READS = ".sqlite, .nsys-rep, .ncu-rep, ncu CSV, PyTorch trace (.json), each also as .gz or .xz, or a run directory"

_JOBS = {
    "sqlite": "llm_perf_opt.readers.nsys_sqlite:read_here",
    "nsys-rep": "llm_perf_opt.readers.nsys_sqlite:read_here",
    "json": "llm_perf_opt.readers.kineto:read_here",
    "measured": "llm_perf_opt.readers.measured:read_here",
    "csv": "llm_perf_opt.readers.ncu_csv:read_here",
}

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
            columns, watch = (launch_config, streams, marker_ranges), observer or Silent()
            if _is_packed_trace(path):  # its reader unpacks it as it goes
                recording = _read_as("json", path, source, Limits.of_packed(path.stat().st_size), columns, watch)
            else:
                plain = stack.enter_context(unpacked(path, source))
                packed = None if plain == path else path.stat().st_size
                recording = _read_plain(plain, source, packed, columns, watch, stack)
            recording.gpu_facts = plausible_facts(recording.gpu_facts)
            return recording
        except OSError as error:
            raise UnreadableInput(f"{source} cannot be read: {error.strerror or error}.") from error


def prefetch(path: Path) -> None:
    """Begin to read a timeline that `read_recording` will be asked for, while the program imports what comes after.

    Nothing where it is to be unpacked or mended first, or is none at all: that is for `read_recording` to say.
    """
    with contextlib.suppress(OSError, UnreadableInput):
        if not path.is_file():
            return
        with path.open("rb") as file:
            head = file.read(64)
        if looks_like_sqlite(head) and log_of(path.resolve(), path.name) is None:
            arguments = [str(path), path.name, *(False, False, False)]
            sandbox.prefetch(_JOBS["sqlite"], arguments, Limits(path.stat().st_size))


def is_measured(path: Path) -> bool:
    """Does this file hold times that a program took of itself?"""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return file.read(len(MEASURED)) == MEASURED.encode()
    except OSError:
        return False


def is_timeline(path: Path) -> bool:
    """Is this a timeline, and no counters? Only the beginning is looked at; False where that does not tell."""
    head = _unpacked_head(path)
    if looks_like_sqlite(head) or (_is_nsys_rep(path.name) and not head.startswith(NCU_MAGIC)):
        return bool(head)
    return _looks_like_json(_as_text(head))


def _unpacked_head(path: Path) -> bytes:
    """Nothing where it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            head = file.read(4096)
            file.seek(0)
            if head.startswith((_GZIP, XZ_MAGIC)):
                head = next(gzip_parts(file, 4096) if head.startswith(_GZIP) else xz_parts(file), b"")[:4096]
            return head
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return b""


def _looks_like_json(text: str | None) -> bool:
    return (text or "").lstrip("\ufeff \t\r\n").startswith(("{", "["))


def _is_packed_trace(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.read(len(_GZIP)).startswith(_GZIP):
            return False
    text = _as_text(_unpacked_head(path)) or ""
    return _looks_like_json(text) and not text.startswith(MEASURED)


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
    size = path.stat().st_size
    most = most_unpacked(size)
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as folder:
        target = Path(folder) / "recording"
        job = [str(path), str(target), head.startswith(_GZIP), most, source]
        sandbox.call(f"{__name__}:unpack_here", job, source, Limits(size, written=most + 1))
        if target.stat().st_size == 0:
            raise UnreadableInput(f"{source} is a compressed file with nothing in it.", "Profile again.")
        yield target


def unpack_here(path: str, target: str, gzipped: bool, most: int, source: str, *, notes: Notes) -> None:
    """Unpack a file, in this process."""
    written = 0
    try:
        with Path(path).open("rb") as packed, Path(target).open("wb") as out:
            for part in gzip_parts(packed) if gzipped else xz_parts(packed):
                written += len(part)
                if written > most:
                    raise unpacks_to_too_much(source)
                out.write(part)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UnreadableInput(
            f"{source} is a compressed file that is truncated or damaged ({error}).", "Copy it again."
        ) from error
    except OSError as error:
        raise UnreadableInput(
            f"{source} cannot be unpacked: {error.strerror or error}.",
            "Free some space, or set TMPDIR to a larger disk.",
        ) from error


@contextlib.contextmanager
def settled(path: Path, source: str) -> Iterator[Path]:
    """The file itself; of a database with a write-ahead log, a private copy with all of its rows in it."""
    with path.open("rb") as file:
        head = file.read(64)
    log = None
    if looks_like_sqlite(head):
        refuse_unfinished(path.resolve(), source)
        log = log_of(path.resolve(), source)
    if log is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as folder:
        target = Path(folder) / "recording"
        both = path.stat().st_size + log.stat().st_size
        job = [str(path), str(log), str(target), source]
        sandbox.call("llm_perf_opt.readers.sqlite_open:settle_here", job, source, Limits(both, written=2 * both))
        yield target


def gzip_parts(file: IO[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as packed:
        while part := packed.read(size):
            yield part


def _read_plain(
    path: Path,
    source: str,
    packed: int | None,
    columns: tuple[bool, bool, bool],
    watch: Observer,
    stack: contextlib.ExitStack,
) -> Recording:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(NCU_MAGIC):
        from llm_perf_opt.readers.ncu_rep import read_ncu_rep

        return read_ncu_rep(path, source, progress=watch.begin(source, None))
    kind = _kind_of(head, source)
    if kind == "nsys-rep":
        from llm_perf_opt.readers.nsys_rep import export_nsys_rep

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llm-perf-")))
        watch.begin(source, None)
        path, packed = export_nsys_rep(path, source, folder), None
    elif kind == "sqlite":
        path = stack.enter_context(settled(path, source))
    return _read_as(kind, path, source, Limits(path.stat().st_size, packed), columns, watch)


def _read_as(
    kind: str, path: Path, source: str, limits: Limits, columns: tuple[bool, bool, bool], watch: Observer
) -> Recording:
    progress: list[Progress] = []

    def heard(name: str, value: Any) -> None:
        if name == "begin":
            progress[:] = [watch.begin(source, value)]
        elif progress:
            progress[0](value)

    recording: Recording = sandbox.call(_JOBS[kind], [str(path), source, *columns], source, limits, heard)
    return recording


def _kind_of(head: bytes, source: str) -> str:
    """What a file is, but for reports of ncu: "sqlite", "nsys-rep", "measured", "json" or "csv"."""
    if looks_like_sqlite(head):
        return "sqlite"
    if _is_nsys_rep(source):
        return "nsys-rep"
    text = _as_text(head)
    if source.endswith((".py", ".sh", ".ipynb")):
        record = NOTEBOOK_FIX if source.endswith(".ipynb") else "Record it first: llm-perf profile -- python FILE"
        raise UnreadableInput(f"{source} is a program, not a recording of one.", record)
    if text is not None and text.startswith(("NVTX Range,", "Time (%),", "Time,", "Start (ns),", "Start,", "Range,")):
        raise UnreadableInput(
            f"{source} is a table printed by nsys stats, which lacks what a report needs.",
            "Give the .sqlite or .nsys-rep it was made from.",
        )
    if text is not None and text.startswith(MEASURED):
        return "measured"
    if _looks_like_json(text):
        return "json"
    if text is not None and ("==PROF==" in text or "==WARNING==" in text or "==ERROR==" in text or '"' in text):
        return "csv"
    kind = "a text file" if text is not None else "a binary file"
    raise UnreadableInput(f"{source} is {kind} that llm-perf does not know.", f"It reads {_READS}.")


def _is_nsys_rep(source: str) -> bool:
    return source.lower().removesuffix(".gz").removesuffix(".xz").endswith((".nsys-rep", ".qdrep"))


def _as_text(head: bytes) -> str | None:
    encoding = encoding_of(head)
    if encoding == "utf-8-sig" and b"\x00" in head:
        return None
    try:
        return head.decode(encoding)
    except UnicodeDecodeError as error:
        # A character cut at the end of the head is no sign of a binary file.
        return head[: error.start].decode(encoding) if error.start > len(head) - 4 else None
