"""Packs the large recordings of a run; every reader opens them as they are.

The packed file is written beside the original, unpacked again and compared byte by byte (by SHA-256); only then does
it get its name, and only then does the original go. Interrupted anywhere, at least one of the two is whole: a run
that has both is read from the original, and the next attempt begins anew.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

from attrs import define

from llm_perf_opt.files import open_new, replacing, unfinished_name
from llm_perf_opt.readers.open import unpacked
from llm_perf_opt.readers.packed import most_unpacked
from llm_perf_opt.rundir.contents import RunFile, files_of, remove
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import PACKED, artefact, unfinished

Form = Literal["xz", "gz"]
_WORTH_IT = 64 << 10  # bytes; below, nothing is gained
_LEAST_GAIN = 0.9  # of the size: what packs worse stays as it is
_PART = 1 << 20


@define
class Packing:
    """One file and what became of it, or would."""

    name: str
    bytes: int
    packed_bytes: int | None = None  # None: not packed
    detail: str = ""  # why it was not packed


def candidates(files: list[RunFile]) -> list[RunFile]:
    """The files of a run that are worth packing."""
    return [
        file
        for file in files
        if file.is_ours
        and file.bytes >= _WORTH_IT
        and not file.name.endswith(PACKED)
        and (row := artefact(file.name)) is not None
        and row.pack
    ]


def compress(directory: RunDirectory, form: Form, progress: Callable[[str], None] = lambda _: None) -> list[Packing]:
    """Pack the recordings of a run that nobody else is working on. Raises OSError; what was done by then stays."""
    done = []
    files = files_of(directory.path, directory.manifest)
    left = [f.name for f in files if f.is_ours and (unfinished(f.name) or "").endswith(PACKED)]
    remove(directory.path.resolve(), left)
    for file in candidates(files):
        progress(file.name)
        done.append(_pack_file(directory, file, form))
    return done


def _pack_file(directory: RunDirectory, file: RunFile, form: Form) -> Packing:
    source = directory.path / file.name
    target = source.with_name(f"{source.name}.{form}")
    temporary = unfinished_name(target)

    def stays(why: str) -> Packing:
        return Packing(file.name, file.bytes, detail=why)

    try:
        before = source.stat(follow_symlinks=False)
        with open_new(temporary, 0o600) as out:
            digest = _pack(source, out, form)
            out.flush()
            os.fsync(out.fileno())
        packed = temporary.stat().st_size
        if packed > _LEAST_GAIN * before.st_size:
            return stays("it hardly gets smaller")
        if before.st_size > most_unpacked(packed):
            return stays("packed so small, it would be taken for a trap when it is read")
        after = source.stat(follow_symlinks=False)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return stays("it changed meanwhile")
        if _digest_of_packed(temporary, form) != (digest, before.st_size):
            return stays("the packed file did not unpack to the same: is the disk failing?")
        if os.path.lexists(target) and (target.is_symlink() or _digest_of_packed(target, form)[0] != digest):
            return stays(f"{target.name} is there already, and is something else")
        temporary.chmod(before.st_mode & 0o7777)
        temporary.replace(target)
        _make_lasting(target.parent)
        entry = {"file": target.name, "bytes": before.st_size, "packed_bytes": packed, "sha256": digest}
        directory.manifest.compressed[file.name] = entry
        directory.save()
        source.unlink()
        return Packing(file.name, file.bytes, packed)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def unpacks_to(file: Path, bytes_: int, sha256: str) -> bool:
    """Is a packed file still what was packed? It is unpacked for that, and nothing is kept of it."""
    try:
        return _digest_of_packed(file, "xz" if file.suffix == ".xz" else "gz") == (sha256, bytes_)
    except OSError:
        return False


def unpack_again(directory: RunDirectory, name: str) -> None:
    """Put a packed file of a run back as it was, for a tool that reads it. Raises OSError; nothing is lost then."""
    plain = directory.path / name
    packed = next((p for e in PACKED if (p := plain.with_name(plain.name + e)).is_file() and not p.is_symlink()), None)
    if plain.exists() or packed is None:
        return
    with unpacked(packed, packed.name) as content, content.open("rb") as source, replacing(plain) as out:
        shutil.copyfileobj(source, out)
        os.fchmod(out.fileno(), packed.stat().st_mode & 0o7777)
    _make_lasting(plain.parent)
    directory.manifest.compressed.pop(name, None)
    directory.save()
    packed.unlink()


def _pack(source: Path, out: IO[bytes], form: Form) -> str:
    """Write the packed file; the SHA-256 of the original. The same content always gives the same file."""
    digest = hashlib.sha256()
    with (
        source.open("rb") as content,
        # The lowest preset: ten times as fast as the usual one, for a file that is a fifth larger.
        lzma.open(out, "wb", preset=0) if form == "xz" else gzip.GzipFile("", "wb", 6, out, mtime=0) as packed,
    ):
        while part := content.read(_PART):
            digest.update(part)
            packed.write(part)
    return digest.hexdigest()


def _digest_of_packed(file: Path, form: Form) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    try:
        with lzma.open(file) if form == "xz" else gzip.open(file) as content:
            while part := content.read(_PART):
                digest.update(part)
                size += len(part)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error):
        return "", 0
    return digest.hexdigest(), size


def _make_lasting(folder: Path) -> None:
    """The new name must be on the disk before the original goes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
