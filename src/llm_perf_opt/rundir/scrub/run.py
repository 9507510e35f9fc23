"""What becomes of each file of a run, and whether the result is clean.

Only files that a run is known to have are copied: recordings are cleaned by their format, texts word by word.
What cannot be cleaned is dropped, what is not known is left out, and both are named. The copy is made in a
folder of its own and looked through before it gets its name.
"""

from __future__ import annotations

import gzip
import lzma
import mmap
import re
import shutil
import socket
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from attrs import Factory, define

from llm_perf_opt.errors import MissingTool, UnreadableInput, UserError
from llm_perf_opt.readers.ncu_container import MAGIC
from llm_perf_opt.readers.nsys_export import looks_like_sqlite
from llm_perf_opt.readers.nsys_rep import export_nsys_rep
from llm_perf_opt.readers.open import settled, unpacked
from llm_perf_opt.regions.names import visible
from llm_perf_opt.rundir.layout import MANIFEST, REPORT_LIST, Share, artefact, is_of_report, rank_of_folder
from llm_perf_opt.rundir.scrub import ncu_report, sqlite, texts
from llm_perf_opt.rundir.scrub.private import Private
from llm_perf_opt.rundir.secrets import REMOVED
from llm_perf_opt.untrusted import read_json

# What becomes of a file, as `layout` says for those of a run; a file given by itself is known by its content.
Kind = Share | Literal["given", "unknown"]
Action = Literal["cleaned", "copied", "dropped", "left out"]

_TEXT_ENDINGS = (".json", ".yaml", ".yml", ".csv", ".md", ".html", ".svg", ".txt", ".log")
_NOTHING_WRITTEN = "Nothing was written. Please report this: the recording has a place that is not known yet."
_NOT_COPIED: dict[Kind, str] = {"unknown": "a run has no such file", "leave out": "it is of use here only"}
_NAMES_NOT_CHECKED = "names of ranges and kernels for secrets that nobody named: they are the content, and stay"
_NAMES_SHOWN = 10
_PART = 16 << 20
# The second: SQLite's own message quotes the bytes it stumbled over, and Python cannot decode them.
_DAMAGED = (
    sqlite3.DatabaseError,
    UnicodeDecodeError,
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    UnreadableInput,
)


@define
class File:
    """One file and what became of it."""

    path: str  # below the run, or the file's name
    action: Action
    detail: str = ""


@define
class Result:
    """A copy that was made and looked through."""

    files: list[File] = Factory(list)
    warnings: list[str] = Factory(list)
    secrets: int = 0  # that were looked for in every file of the copy
    not_checked: list[str] = Factory(list)  # where a secret could still be, in words
    # Recordings and their cleaned copies, for a comparison of their reports.
    pairs: list[tuple[Path, Path]] = Factory(list)
    sources: dict[str, Path] = Factory(dict)  # file of the copy → the file it takes the place of
    dropped: list[Path] = Factory(list)


class StillPrivate(UserError):
    """The copy holds what it must not, and was thrown away."""


@define
class _Item:
    source: Path
    target: str  # its path in the copy
    kind: Kind
    plain: Path | None = None  # the same, unpacked
    problem: str = ""  # why it is not copied
    manifest: Any = None  # what the manifest of the run says


def scrub(inputs: Sequence[Path], folder: Path, scratch: Path, environment: Mapping[str, str]) -> Result:
    """Clean copies of runs or files in `folder`, which must be empty; what is unpacked goes to `scratch`.

    `environment`: that of this shell. The program may have had the same secrets and printed them.
    """
    items = [item for path in inputs for item in _items(path)]
    for number, item in enumerate(items):
        _unpack(item, scratch / str(number))
    _export(items, scratch)
    private = Private()
    private.learn_environment(environment)
    private.learn_host(socket.gethostname())
    for item in items:
        _learn(item, private)
    manifests = {rank_of_folder(PurePosixPath(i.target)): i.manifest for i in items if i.manifest is not None}
    manifest = next(iter(manifests.values()), None)
    for item in items:
        item.manifest = manifests.get(rank_of_folder(PurePosixPath(item.target)), manifest)
    result = Result(secrets=len(private.secrets))
    if not private.secrets:
        result.not_checked.append("secrets of the program: neither this shell nor the inputs name any")
    kept: set[str] = set()  # secrets that are names of ranges
    for item in sorted(items, key=lambda item: item.kind != "sqlite"):
        _make_copy(item, folder, private, kept, result)
    # Which files are the report's: a copy can be pruned as a whole, too.
    if listed := sorted(name for name in result.sources if is_of_report(name)):
        (folder / REPORT_LIST).write_text("".join(f"{name}\n" for name in listed), encoding="utf-8")
    _search(folder, private, kept)
    if not result.sources:
        names = "; ".join(f"{file.path}: {file.detail}" for file in result.files)
        raise UserError(
            f"Nothing is left to share ({names}).", "Give an SQLite export of the timeline, or an .ncu-rep."
        )
    return result


# -- which files there are -------------------------------------------------------------------------


def _items(path: Path) -> Iterator[_Item]:
    if not path.exists():
        raise UserError(f"{path} does not exist.", "Give a run directory of llm-perf, or recordings.")
    if not path.is_dir():
        yield _Item(path, path.name, "given")
        return
    found = False
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_symlink():
            yield _Item(file, name, "unknown", problem="it is a link")
        elif file.is_file():
            row = artefact(name)
            found = found or row is not None
            kind: Kind = "unknown" if row is None else row.share
            yield _Item(file, name, kind, problem=_NOT_COPIED.get(kind, ""))
    if not found:
        raise UserError(
            f"{path} contains nothing that a run leaves: no nsys/, ncu/, manifest.json or report.",
            "Give a run directory of llm-perf, or the recordings themselves.",
        )


def _kind_of(path: Path, name: str) -> Kind:
    """What a file given by itself is, by its content."""
    with path.open("rb") as file:
        head = file.read(4096)
    plain = name.lower().removesuffix(".gz").removesuffix(".xz")
    if looks_like_sqlite(head):
        return "sqlite"
    if head.startswith(MAGIC):
        return "ncu-rep"
    if plain.endswith((".nsys-rep", ".qdrep", ".qdstrm")):
        return "drop"
    if plain == "env.json":
        return "environment"
    if plain.endswith((".log", ".jsonl")):
        return "output"
    return "text" if plain.endswith(_TEXT_ENDINGS) and b"\0" not in head else "unknown"


def _unpack(item: _Item, folder: Path) -> None:
    if item.problem:
        return
    try:
        if not item.source.stat().st_size:
            item.kind, item.problem = "unknown", "it is empty"
            return
        name = item.source.name
        with unpacked(item.source, name) as whole, settled(whole, name) as plain:
            if plain == item.source:
                item.plain = plain
            else:
                folder.mkdir(parents=True)
                item.plain = Path(shutil.move(plain, folder / "plain"))
        if item.kind == "given":
            item.kind = _kind_of(item.plain, item.target)
            item.problem = "llm-perf does not know what it is" if item.kind == "unknown" else ""
    except _DAMAGED as error:
        item.kind, item.problem = "unknown", f"it is damaged ({error})"
    except OSError as error:
        raise UserError(f"{item.source} cannot be read: {error.strerror or error}.") from error


def _export(items: list[_Item], scratch: Path) -> None:
    """A raw timeline is of use only as SQLite; where there is none beside it, nsys makes one."""
    there = {_stem(item.target) for item in items if item.kind == "sqlite"}
    for number, item in enumerate(items):
        if item.kind != "drop" or item.problem:
            continue
        item.problem = "nsys's own format carries the whole environment and cannot be cleaned"
        if _stem(item.target) in there:
            item.problem += "; the SQLite file holds the same timeline"
            continue
        export = "nsys export --type sqlite -o OUT.sqlite FILE"
        assert item.plain is not None
        if not item.target.endswith((".nsys-rep", ".qdrep")):
            item.problem += f"; import it with nsys, then: {export}"
            continue
        folder = scratch / f"export-{number}"
        folder.mkdir()
        try:
            item.plain = export_nsys_rep(item.plain, item.source.name, folder)
        except (MissingTool, UnreadableInput) as error:
            item.problem += f", and it could not be exported here: {error.message} Where nsys is: {export}"
            continue
        item.kind, item.problem = "sqlite", ""
        item.target = f"{_stem(item.target)}.sqlite"


def _stem(name: str) -> str:
    return re.sub(r"(\.(?:gz|xz|sqlite|nsys-rep|qdrep|qdstrm))+$", "", name)


# -- what is private in them -----------------------------------------------------------------------


def _learn(item: _Item, private: Private) -> None:
    if item.plain is None or item.problem:
        return
    try:
        if item.kind == "sqlite":
            sqlite.learn(item.plain, private)
        elif item.kind == "ncu-rep":
            ncu_report.learn(item.plain.read_bytes(), private)
        elif item.kind == "environment":
            content = read_json(item.plain)
            if isinstance(content, dict):
                private.learn_environment({str(k): str(v) for k, v in content.items() if v != REMOVED})
        elif (row := artefact(item.target)) is not None and row.path == MANIFEST:
            item.manifest = read_json(item.plain)  # one that cannot be read is not shared
            private.learn_command(texts.program_of(item.manifest))
            for name in ("host", "node"):  # a rank ran on another machine than this
                private.learn_host(str(item.manifest.get(name) or "") if isinstance(item.manifest, dict) else "")
            for line in texts.quoted_output(item.manifest):
                private.learn_output(line)
    except (*_DAMAGED, ValueError, OSError) as error:
        item.problem = f"it is damaged ({error})"


# -- copies ----------------------------------------------------------------------------------------


def _make_copy(item: _Item, folder: Path, private: Private, kept: set[str], result: Result) -> None:
    if item.problem or item.plain is None:
        dropped = item.kind == "drop"
        result.files.append(File(item.target, "dropped" if dropped else "left out", item.problem))
        if dropped:
            result.dropped.append(item.source)
        return
    name = _clean_name(item.target, private)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        raise UserError(f"Two files would be called {name} in the copy.", "Scrub them one by one.")
    copy = target.with_name(f".{target.name}.plain")
    try:
        detail = _clean(item, copy, private, kept, result)
        _pack(copy, target)
    except (*_DAMAGED, ValueError) as error:
        result.files.append(File(item.target, "left out", f"it is damaged ({error})"))
        return
    finally:
        copy.unlink(missing_ok=True)
    result.files.append(File(name, "cleaned" if detail else "copied", detail))
    result.sources[name] = item.source
    if item.kind in ("sqlite", "ncu-rep"):
        result.pairs.append((item.plain, target))
        if _NAMES_NOT_CHECKED not in result.not_checked:
            result.not_checked.append(_NAMES_NOT_CHECKED)
    elif item.kind == "text" and item.target.removesuffix(".gz").endswith("trace.json"):
        result.not_checked.append(f"{name}: what the program wrote into its own trace, but for known secrets")


def _clean(item: _Item, copy: Path, private: Private, kept: set[str], result: Result) -> str:
    """Write the plain, clean copy; what was removed, in words."""
    assert item.plain is not None
    if item.kind == "sqlite":
        done = sqlite.clean(item.plain, copy, private)
        _warn_of_names(item, done.private_names, private, kept, result)
        return ", ".join(done.removed)
    if item.kind == "ncu-rep":
        data, report = ncu_report.clean(item.plain.read_bytes(), private, frozenset(kept))
        copy.write_bytes(data)
        result.warnings += [f"{item.target} {note}." for note in report.notes]
        return ", ".join(report.removed)
    if item.kind in ("output", "profiler log"):
        with item.plain.open(encoding="utf-8", errors="replace") as source:
            left = texts.only_counted(source) if item.kind == "output" else "".join(texts.profiler_log(source))
            copy.write_text(left, encoding="utf-8")
        return "the output of the program left out" if item.kind == "output" else "unknown lines left out"
    if item.kind in ("environment", "settings", "commands", "cmd"):
        old = item.plain.read_text(encoding="utf-8")
        new = private.text(_rewritten(item, old), looks_secret=item.kind != "cmd")
        copy.write_text(new, encoding="utf-8", errors="surrogateescape")
        return "private words replaced" if new != old else ""
    changed = False
    with item.plain.open("rb") as source, copy.open("wb") as target:
        # Whole lines, a part at a time: a program may have printed gigabytes.
        while lines := source.readlines(_PART):
            text = b"".join(lines).decode("utf-8", "surrogateescape")
            if item.kind == "page":
                cleaned = private.page(texts.without_source(text))
            elif item.kind == "report":
                cleaned = private.text(texts.without_source(text), looks_secret=False)
            else:
                cleaned = private.text(text, looks_secret=item.kind == "text")
            changed = changed or cleaned != text
            target.write(cleaned.encode("utf-8", "surrogateescape"))
    return "private words replaced" if changed else ""


def _rewritten(item: _Item, old: str) -> str:
    """A file that is made of variables, settings or commands; ValueError where it is not."""
    if item.kind == "environment":
        return texts.environment(old)
    if item.kind == "settings":
        return texts.settings(old)
    if item.kind == "commands":
        return texts.with_clean_commands(old, texts.program_of(item.manifest))
    return texts.command_file(item.manifest, PurePosixPath(item.target).parent.name)


def _warn_of_names(item: _Item, names: Mapping[str, str], private: Private, kept: set[str], result: Result) -> None:
    """Names of ranges and kernels are what a timeline is about: they stay, and their owner must know."""
    for name, what in list(names.items())[:_NAMES_SHOWN]:
        kept.update(secret for secret in private.secrets if secret in name)
        result.warnings.append(
            f"{item.target}: a range or kernel is called {visible(private.text(name), 120)!r}, which holds {what}. Names are content "
            "and stay: rename the range and record again, or do not share this file."
        )
    if len(names) > _NAMES_SHOWN:
        result.warnings.append(f"{item.target}: {len(names) - _NAMES_SHOWN} more such names.")


def _clean_name(name: str, private: Private) -> str:
    """File names may hold the host (`%h` of the profilers) or a user."""
    parts = [private.text(part) for part in PurePosixPath(name).parts]
    return "/".join(re.sub(r"[^\w.@+=, -]", "_", part) if part not in name else part for part in parts)


def _pack(plain: Path, target: Path) -> None:
    """Compressed as the name says, and as fast as that goes; the same content always gives the same file."""
    if target.suffix == ".gz":
        with plain.open("rb") as source, target.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            shutil.copyfileobj(source, packed)
    elif target.suffix == ".xz":
        with plain.open("rb") as source, lzma.open(target, "wb", preset=1) as packed:
            shutil.copyfileobj(source, packed)
    else:
        plain.replace(target)


# -- the last look ---------------------------------------------------------------------------------


def _search(folder: Path, private: Private, kept: set[str]) -> None:
    """Look for every secret in every byte of the copy."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        with unpacked(path, path.name) as plain, plain.open("rb") as file:
            if not plain.stat().st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                recording = looks_like_sqlite(data[:64]) or data[:4] == MAGIC
                found = private.found_in(data, encoded=not recording)
                if recording:
                    found = {secret: name for secret, name in found.items() if secret not in kept}
        if found:
            names = ", ".join(sorted(set(found.values())))
            raise StillPrivate(
                f"The copy of {path.relative_to(folder).as_posix()} still holds the value of {names}.", _NOTHING_WRITTEN
            )
