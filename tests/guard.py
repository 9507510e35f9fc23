"""Keeps the markers honest: a test that starts a process, loads torch or opens a browser must be marked so.

`make check` leaves those tests out by their markers, so a marker that is missing would make it slow, or fail
where torch is not installed. Python reports every such step to audit hooks; here they are refused in a test
without the marker, and the test fails even where the code under test catches the error.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_EVENTS = {
    "subprocess.Popen": "process",
    "os.fork": "process",
    "os.forkpty": "process",
    "os.posix_spawn": "process",
    "os.spawn": "process",
    "os.exec": "process",
    "os.system": "process",
}
_MODULES = {"torch": "torch", "transformers": "torch", "playwright": "browser"}
_AT_IMPORT = re.compile(r'^(?:\w+ = )?pytest\.importorskip\("(torch|transformers|playwright)', re.MULTILINE)

_PURE = tuple(f"llm_perf_opt.{room}" for room in ("readers", "regions", "metrics", "analysis"))
_changed = False  # see `changed`

_item: pytest.Item | None = None  # the test that runs; None between tests, where nothing is refused
_older: set[int] = set()  # threads of tests before, which may still ask something
_broken: dict[str, str] = {}  # marker that is missing → what needed it


def missing(marker: str) -> bool:
    """Whether a test is running that does not have this marker."""
    return _item is not None and _item.get_closest_marker(marker) is None


def changed() -> bool:
    """Whether the running test has changed something of the rooms whose results `conftest` keeps."""
    return _changed


def _setattr(patch: pytest.MonkeyPatch, target: Any, *others: Any, **more: Any) -> None:
    global _changed
    place = (
        target if isinstance(target, str) else getattr(target, "__module__", None) or getattr(target, "__name__", "")
    )
    _changed = _changed or place.startswith(_PURE)
    _set(patch, target, *others, **more)


_set = pytest.MonkeyPatch.setattr
pytest.MonkeyPatch.setattr = _setattr  # type: ignore[method-assign,assignment]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "import" and event not in _EVENTS:  # first: every open file and every `id` is an event
        return
    if _item is None or threading.get_ident() in _older:
        return
    if event == "import":
        name = str(arguments[0])
        marker = _MODULES.get(name.partition(".")[0])
        what = f"imports {name}"
    else:
        marker, what = _EVENTS.get(event), f"{event} {arguments[:2]!r:.200}"
    if marker is not None and missing(marker):
        _broken.setdefault(marker, what)
        raise RuntimeError(f"This test needs @pytest.mark.{marker}: {what}")


sys.addaudithook(_audit)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that load torch or a browser when they are imported are not, where their tests are left out anyway."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    needed = {_MODULES[name] for name in _AT_IMPORT.findall(collection_path.read_text(encoding="utf-8"))}
    return True if any(f"not {marker}" in config.option.markexpr for marker in needed) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _item, _changed
    _item, _changed = item, False
    _older.clear()
    _older.update(thread.ident or 0 for thread in threading.enumerate() if thread is not threading.main_thread())
    _broken.clear()
    try:
        return (yield)
    finally:
        _item = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that caught the refusal fails all the same; so does one that skipped because of it."""
    report: Any = yield
    if _broken and report.outcome != "failed":
        report.outcome = "failed"
        report.longrepr = "; ".join(f"needs @pytest.mark.{marker}: {what}" for marker, what in _broken.items())
        _broken.clear()
    return report
