"""What resuming a run would start, in words: all that a stranger's manifest decides, for whoever has to trust it.

The command alone does not tell: options of ncu can load files and write them, and of a run of the Hydra runner the
configuration decides what is started, whatever its manifest says the command was.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.ncu.argv import NcuOptions, ncu_arguments
from llm_perf_opt.rundir.manifest import Manifest

_NONE = (None, "", False)  # settings with which nothing was asked for


def orders_in_words(manifest: Manifest) -> str:
    """Everything that is sealed, one thing a line."""
    return "\n".join(f"  {line}" for line in _lines(manifest))


def _lines(manifest: Manifest) -> Iterator[str]:
    yield f"in the folder {manifest.folder!r}"
    yield f"the command {_told(lambda: shlex.join(manifest.command), manifest.command)}"
    for order in manifest.captures or ():
        yield from _of_capture(order)
    for name, value in _leaves(manifest.settings):
        yield f"with {name} = {_plain(value)}"


def _of_capture(order: object) -> Iterator[str]:
    """A capture with ncu's options, and those that would be taken instead of it."""
    given = order if isinstance(order, Mapping) else {}
    name = given.get("name")
    yield f"under ncu, capture {_plain(name)}: {_told(lambda: shlex.join(_options(given)), order)}"
    instead = given.get("instead")
    for other in instead if isinstance(instead, list) else ():
        yield from _of_capture(other)


def _options(order: Mapping[str, Any]) -> list[str]:
    return ncu_arguments("OUT", options=NcuOptions(**order["options"]), nvtx_expr=list(map(str, order["expressions"])))


def _told(words: Callable[[], str], otherwise: object) -> str:
    """As it would be typed; where the manifest holds something that cannot be, that as it stands."""
    try:
        return words()
    except (LookupError, TypeError, ValueError, AttributeError, UserError):
        return _plain(otherwise)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Settings that ask for something, with their full names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif value not in _NONE and value != []:
        yield name, value


def _plain(value: object) -> str:
    return json.dumps(value, default=str)
