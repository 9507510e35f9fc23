"""What somebody may have meant: the nearest of the names that exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(text: str, candidates: Iterable[str], count: int = 5) -> list[str]:
    """Candidates most like `text`, best first; all of them in order where nothing is alike."""
    pool = list(dict.fromkeys(candidates))
    wanted = text.strip("*/").lower()
    scored = []
    for candidate in pool:
        plain = candidate.lower()
        last = plain.rsplit("/", 1)[-1].rsplit("@", 1)[-1]
        score = max(difflib.SequenceMatcher(None, wanted, form, autojunk=False).ratio() for form in (plain, last))
        scored.append((score, candidate))
    scored.sort(key=lambda pair: -pair[0])
    return [candidate for _, candidate in scored[:count]]
