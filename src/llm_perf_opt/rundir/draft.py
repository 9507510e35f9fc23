"""A report is put into its folder as a whole: after a kill or a full disk, the old one or the new one is there.

All files are written into a folder of their own, a draft, inside the output folder. When it is complete it is
renamed to `.llm-perf-commit`: from that moment the report is the new one. Moving its files to their places is a
handful of renames, whole folders at once where everything in them is ours; whoever opens or writes the folder next
finishes them where they were cut short. Nothing is replaced or removed that was not looked at (`generation`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UserError
from llm_perf_opt.files import as_bytes, folder_below, open_new
from llm_perf_opt.process.interrupts import held
from llm_perf_opt.processes import is_alive
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.contents import files_below, remove, remove_empty
from llm_perf_opt.rundir.generation import (
    ReportList,
    find_mixture,
    is_ours,
    is_place,
    look_at_place,
    new_generation,
    read_list,
    why_not_ours,
    with_mark,
)
from llm_perf_opt.rundir.layout import COMMIT, DRAFT, REPORT_LIST
from llm_perf_opt.untrusted import read_json

_NEW, _OLD = "new", "old"  # in a draft: the files of the report; what they took the place of
_REPLACES = "replaces.json"  # in a draft: what may go, by its content
_LARGEST_NOTE = 64 << 20


@define
class Draft:
    """A report that is being written."""

    out: Path
    generation: str
    folder: Path
    files: dict[str, str] = Factory(dict)  # place -> SHA-256
    _lock: int | None = None
    _made: bool = False  # the output folder is new

    @staticmethod
    def begin(out: Path, *, made: bool = False) -> Draft:
        """In a folder that is there; `made`: for this report only. Raises OSError where it cannot be written."""
        folder = Path(tempfile.mkdtemp(prefix=f".llm-perf-report.{os.getpid()}.", suffix=".tmp", dir=out))
        (folder / _NEW).mkdir()
        return Draft(out, new_generation(), folder, lock=run_lock.take(folder), made=made)

    def add(self, place: str, text: str) -> None:
        """Write one file; `place` below the output folder, with `/`. Raises OSError."""
        content = as_bytes(with_mark(place, text, self.generation))
        path = self.folder / _NEW / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_new(path) as file:
            file.write(content)
        self.files[place] = hashlib.sha256(content).hexdigest()

    def publish(self, *, force: bool = False) -> list[str]:
        """Put the report in the place of the one that is there. The files it replaced that are not ours: with `force`.

        Raises OSError, and UserError where something that is not ours is in the way; then nothing has changed.
        """
        with run_lock.writing_report(self.out), held():
            finish_commit(self.out)
            self._remove_abandoned()
            listed = read_list(self.out)
            replaces, foreign = _examine(self.out, self.files, listed)
            if foreign and not force:
                raise _in_the_way(self.out, foreign)
            for place in listed.files.keys() - self.files.keys():
                with contextlib.suppress(OSError):  # one that a link leads to stays
                    why, sha256 = why_not_ours(self.out, place, listed)
                    if not why and sha256:
                        replaces[place] = sha256
            for path, text in (
                (self.folder / _REPLACES, json.dumps(replaces)),
                (self.folder / _NEW / REPORT_LIST, ReportList(self.generation, self.files).text()),
            ):
                with open_new(path) as file:
                    file.write(as_bytes(text))
            (self.folder / _OLD).mkdir()
            with _planned(self.out, self.folder, replaces) as moves:
                self.folder.rename(self.out / COMMIT)
                _carry_out(moves)
            _tidy(self.out, replaces)
            self._end()
            return sorted(foreign)

    def discard(self) -> None:
        """As if it had never been begun."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._end()
        if self._made:
            with contextlib.suppress(OSError):
                self.out.rmdir()

    def _end(self) -> None:
        run_lock.release(self._lock)
        self._lock = None

    def _remove_abandoned(self) -> None:
        """Drafts whose process was killed."""
        for folder in self.out.iterdir():
            found = DRAFT.fullmatch(folder.name)
            if found and folder != self.folder and not run_lock.is_held(folder) and not is_alive(int(found["pid"])):
                shutil.rmtree(folder, ignore_errors=True)  # which leaves links alone


def settle(folder: Path) -> Diagnosis | None:
    """Before the report in a folder is read: finish what was begun; what still does not belong together is told."""
    if (folder / COMMIT).is_dir():
        with contextlib.suppress(OSError, run_lock.Busy), run_lock.writing_report(folder, 1.0), held():
            finish_commit(folder)
    return find_mixture(folder)


def finish_commit(out: Path) -> None:
    """Finish what a killed process had begun. Raises OSError; what somebody has changed since then stays.

    The folder may come from anyone: what is moved to its place is a file of a report, and replaces one only where
    that is what the process had looked at.
    """
    commit = out / COMMIT
    if not commit.is_dir() or commit.is_symlink():
        return
    replaces: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        noted = read_json(commit / _REPLACES, _LARGEST_NOTE)
        replaces = {place: str(sha256) for place, sha256 in noted.items() if is_place(place)}
    listed = read_list(commit / _NEW)
    replaces = {
        place: sha256
        for place, sha256 in replaces.items()
        if not _differs(out, place, sha256) and (place in listed.files or is_ours(out, place))
    }
    if listed.files and not (commit / _NEW).is_symlink():  # it is moved last: without it all is done
        for place in [*files_below(commit / _NEW)]:
            if place != REPORT_LIST and (
                place not in listed.files
                or not is_ours(commit / _NEW, place)
                or _differs(out, place, replaces.get(place, ""))
            ):
                remove(commit / _NEW, [place])
        (commit / _OLD).mkdir(exist_ok=True)
        with _planned(out, commit, replaces) as moves:
            _carry_out(moves)
    _tidy(out, replaces)


def _differs(out: Path, place: str, sha256: str) -> bool:
    """Is something else there than the killed process had looked at?"""
    try:
        found = look_at_place(out, place, digest=True)
    except OSError:
        return True
    return found is not None and not found.is_link and found.sha256 != sha256


def _examine(out: Path, places: Mapping[str, str], listed: ReportList) -> tuple[dict[str, str], dict[str, str]]:
    """The files that will be replaced with their SHA-256; of those that are not ours, why."""
    replaces, foreign = {}, {}
    for place in places:
        if (out / place).is_dir() and not (out / place).is_symlink():
            raise UserError(f"{out / place} is a folder, and a file of the report goes there.", _ELSEWHERE)
        why, sha256 = why_not_ours(out, place, listed)
        if sha256:
            replaces[place] = sha256
        if why:
            foreign[place] = why
    return replaces, foreign


_ELSEWHERE = "Choose another folder with --out."


def _in_the_way(out: Path, foreign: Mapping[str, str]) -> UserError:
    named = [f"{out / place} ({why})" for place, why in sorted(foreign.items())]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return UserError(
        f"The report would replace {', '.join(named[:3])}{more}. Nothing was written.",
        "Choose another folder with --out, or replace what is there with --force.",
    )


_Move = tuple[int, str, int, str]  # from a folder and a name to a folder and a name


@contextlib.contextmanager
def _planned(out: Path, draft: Path, replaces: Mapping[str, str]) -> Iterator[list[_Move]]:
    """Everything to be moved, with the folders held open: no link that is placed meanwhile is followed."""
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(folder_below(draft, [_OLD]))
        number = len(os.listdir(old))  # noqa: PTH208 - a handle
        superfluous = set(replaces) - read_list(draft / _NEW).files.keys()
        away: list[_Move] = []
        moves: list[_Move] = []

        @cache
        def held_open(root: Path, names: tuple[str, ...], make: bool = False) -> int:
            return stack.enter_context(folder_below(root, names, make=make))

        def plan(names: tuple[str, ...]) -> None:
            target = held_open(out, names, make=True)
            for entry in sorted(draft.joinpath(_NEW, *names).iterdir(), key=_order):
                place = "/".join((*names, entry.name))
                if entry.is_dir() and os.path.lexists(out / place):
                    if (out / place).is_symlink() or not _all_in(replaces, out, place):
                        plan((*names, entry.name))  # which says what is wrong with a link or a file
                        continue
                    moves.append((target, entry.name, old, f"{number}-{len(moves)}"))
                    superfluous.difference_update({name for name in superfluous if name.startswith(f"{place}/")})
                moves.append((held_open(draft, (_NEW, *names)), entry.name, target, entry.name))

        plan(())
        for place in sorted({_largest(superfluous, out, place) for place in superfluous}):
            *names, name = place.split("/")
            if os.path.lexists(out / place):
                away.append((held_open(out, tuple(names)), name, old, f"{number}-away-{len(away)}"))
        yield [*away, *moves]  # the list of the files, which is the last, comes when all is done


def _carry_out(moves: Iterable[_Move]) -> None:
    # Nothing else happens in here: a kill between two of them leaves a mixture until somebody finishes it.
    for source, name, target, new_name in moves:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


def _order(entry: Path) -> tuple[bool, ...]:
    """Folders first; the files that people open are moved one right after the other; the list at the very end."""
    name = entry.name
    return not entry.is_dir(), name == REPORT_LIST, name.startswith("report."), entry.suffix == ".json"


def _all_in(places: Container[str], out: Path, folder: str) -> bool:
    """Is everything below a folder among these?"""
    return (out / folder).is_dir() and all(f"{folder}/{name}" in places for name in files_below(out / folder))


def _largest(places: Container[str], out: Path, place: str) -> str:
    """The outermost folder around a file that has nothing but such files in it; the file where there is none."""
    around = [str(folder) for folder in PurePosixPath(place).parents[:-1]]
    return next((folder for folder in reversed(around) if _all_in(places, out, folder)), place)


def _tidy(out: Path, replaces: Mapping[str, str]) -> None:
    """The report is in its place: what it replaced goes, and so do the folders that are empty now."""
    shutil.rmtree(out / COMMIT, ignore_errors=True)
    for place in replaces:
        for folder in PurePosixPath(place).parents[:-1]:
            if not (out / folder).is_symlink():
                remove_empty(out / folder)
