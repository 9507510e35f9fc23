"""What became of a fix or a lever that was tried, in words: the same in reports and in the results of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.regions.names import visible

VERDICT_WORDS = {
    "better": "faster",
    "worse": "slower",
    "same": "as fast as before",
    "unsure": "not certain",
    "not_comparable": "not comparable",
    "refused": "refused: it changes the results",
    "not applied": "has no effect",
    "failed": "failed",
    "left out": "not tried",
}


def factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}×"


def tried_in_words(tried: Mapping[str, Any] | None) -> str:
    """Of `fixes[].tried`, which comes from a file; nothing where it was not tried."""
    if not tried or tried.get("verdict") not in VERDICT_WORDS:
        return ""
    name, gain, predicted = tried.get("name"), tried.get("gain"), tried.get("predicted_gain")
    text = f"Tried ({visible(str(name), 60)}): {VERDICT_WORDS[tried['verdict']]}"
    if isinstance(gain, (int, float)):
        text += f", {factor(gain)}"
        text += f" (predicted {factor(predicted)})" if isinstance(predicted, (int, float)) else ""
        text += f", outputs {visible(str(tried.get('outputs')), 20)}"
    elif tried.get("reason"):
        text += f" ({visible(str(tried['reason']), 200)})"
    return f"{text}."
