"""Which files of a folder are a report's, and of which report: the generation they carry, and what is in them.

Every report has a generation, an id that its files carry: `report.json` as a field, pages, pictures and texts in
their last line, tables (which have no place for it) through the list beside them. A file counts as ours by its own
content: the generation it carries, or the beginning that only our files have (`formats`). The list may come from
anyone: it can make a file less ours (it has changed since) but never more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.files import folder_below, write_text
from llm_perf_opt.formats import begins_like_ours
from llm_perf_opt.rundir.layout import COMMIT, REPORT_LIST, is_of_report, is_plain

_ID = r"\d{8}T\d{6}-[0-9a-f]{12}"
_MARK = re.compile(rf"(?:<!-- |\[)llm-perf report ({_ID})(?: -->|\])\s*".encode())
_IN_JSON = re.compile(rf'\{{\s*"schema_version":\s*"[^"]*",\s*"generation":\s*"({_ID})"'.encode())
_END = 100  # bytes that hold the mark
_BEGIN = 4096
_LARGEST_LIST = 16 << 20


def new_generation() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(6)}"


def with_mark(place: str, text: str, generation: str) -> str:
    """The text of a file that says in its last line which report it belongs to, where its format allows that."""
    ending = PurePosixPath(place).suffix
    if ending in (".md", ".html", ".svg"):
        return f"{text.rstrip(chr(10))}\n\n<!-- llm-perf report {generation} -->\n"
    return f"{text.rstrip(chr(10))}\n\n[llm-perf report {generation}]\n" if ending == ".txt" else text


@define(frozen=True)
class ReportList:
    """What a folder says its report consists of."""

    generation: str = ""
    files: dict[str, str] = Factory(dict)  # place -> SHA-256; empty where an earlier version wrote the list

    def text(self) -> str:
        return json.dumps({"generation": self.generation, "files": self.files}, indent=0) + "\n"


def read_list(folder: Path) -> ReportList:
    """Only names that a report writes; nothing where the list cannot be read."""
    try:
        handle = os.open(folder / REPORT_LIST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, encoding="utf-8") as file:
            text = file.read(_LARGEST_LIST)
    except (OSError, UnicodeDecodeError):
        return ReportList()
    try:
        content = json.loads(text)
        generation, named = str(content["generation"]), {str(k): str(v) for k, v in content["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        generation, named = "", dict.fromkeys(text.splitlines(), "")  # one name a line, as it once was
    return ReportList(generation, {name: sha for name, sha in named.items() if is_place(name)})


def is_place(name: str) -> bool:
    """Could a report have a file there?"""
    return all(map(is_plain, name.split("/"))) and is_of_report(name)


@define(frozen=True)
class Found:
    """What is in the place of a file of a report."""

    generation: str = ""  # that it carries
    is_ours: bool = False
    is_link: bool = False  # neither followed nor anybody's content
    sha256: str = ""


def look_at_place(root: Path, place: str, *, digest: bool = False) -> Found | None:
    """What lies there; None: nothing. No link is followed: OSError where one is on the way."""
    path = PurePosixPath(place)
    try:
        with folder_below(root, path.parent.parts) as folder:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return Found(is_link=stat.S_ISLNK(status.st_mode))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(path.name, flags, dir_fd=folder), "rb") as file:
                begin = file.read(_BEGIN)
                file.seek(max(status.st_size - _END, 0))
                end = file.read(_END)
                file.seek(0)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest() if digest else ""
    except FileNotFoundError:
        return None
    generation = _carried(path.suffix, begin, end)
    return Found(generation, bool(generation) or begins_like_ours(path.suffix, begin), sha256=sha256)


def is_ours(root: Path, place: str) -> bool:
    """Is the file there one that we wrote? Raises OSError."""
    found = look_at_place(root, place)
    return found is not None and found.is_ours


def _carried(ending: str, begin: bytes, end: bytes) -> str:
    found = _IN_JSON.match(begin) if ending == ".json" else next(iter(list(_MARK.finditer(end))[-1:]), None)
    if found is None or (ending != ".json" and found.end() != len(end)):
        return ""
    return found[1].decode()


def why_not_ours(root: Path, place: str, listed: ReportList) -> tuple[str, str]:
    """Why a file must not be replaced or removed, empty where it may be, and its SHA-256. Raises OSError."""
    found = look_at_place(root, place, digest=True)
    if found is None or found.is_link:  # the link goes, what it leads to stays
        return "", ""
    if not found.is_ours:
        return "llm-perf did not write it", found.sha256
    known = listed.files.get(place)
    return ("it was changed after llm-perf wrote it" if known and known != found.sha256 else ""), found.sha256


def list_again(folder: Path) -> None:
    """After a command of ours changed files of a report: note them as they are now. Raises OSError."""
    listed = read_list(folder)
    found = {place: look_at_place(folder, place, digest=True) for place in listed.files}
    now = {place: it.sha256 for place, it in found.items() if it is not None and it.is_ours}
    if now:
        write_text(folder / REPORT_LIST, ReportList(listed.generation, now).text())


def find_mixture(folder: Path) -> Diagnosis | None:
    """Is what lies in a folder of more than one report? Its files are looked at, not believed to be what they were."""
    listed = read_list(folder)
    generations: dict[str, list[str]] = {}
    for place in listed.files or ("report.json", "report.html", "report.md", "kernels.md", "stakeholder_summary.md"):
        with contextlib.suppress(OSError):
            if (found := look_at_place(folder, place)) is not None and found.generation:
                generations.setdefault(found.generation, []).append(place)
    if listed.generation and listed.files:
        generations.setdefault(listed.generation, [])
    pending = (folder / COMMIT).is_dir()
    if len(generations) < 2 and not pending:
        return None
    told = "; ".join(f"{places[0]} of {name}" for name, places in sorted(generations.items()) if places)
    name = "REPORT_MIXED.killed" if pending else "REPORT_MIXED"
    return diagnose(name, folder=folder.name or folder, found=told)
