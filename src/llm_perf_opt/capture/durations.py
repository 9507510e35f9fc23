"""How long the steps of earlier runs took, so that a run can say how long it will take.

Kept in the user's cache under a hash: neither commands nor paths are in the file. A forecast is a courtesy, so
whatever is wrong with the file costs the forecast and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.files import cache_folder, write_text
from llm_perf_opt.untrusted import read_json

_KEPT = 200  # steps, the last ones


def durations_file() -> Path:
    return cache_folder() / "durations.json"


def _key(step: str, known_as: Sequence[str]) -> str:
    text = json.dumps([step, str(Path.cwd()), *known_as])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _load() -> dict[str, float]:
    try:
        raw = read_json(durations_file())
        return {str(key): float(seconds) for key, seconds in raw.items() if math.isfinite(float(seconds))}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def expected(step: str, known_as: Sequence[str]) -> float | None:
    """Seconds of the last run of the same command in this folder; None where there was none."""
    seconds = _load().get(_key(step, known_as))
    return seconds if seconds is not None and seconds > 0 else None


def remember(step: str, known_as: Sequence[str], seconds: float) -> None:
    """Keep what a step took."""
    found = _load()
    key = _key(step, known_as)
    found.pop(key, None)  # to the end: the last ones are kept
    found[key] = round(seconds, 1)
    kept = dict(list(found.items())[-_KEPT:])
    with contextlib.suppress(OSError):
        durations_file().parent.mkdir(parents=True, exist_ok=True)
        write_text(durations_file(), json.dumps(kept) + "\n")
