"""A large trace is read in chunks, and says what the same trace says when it is read whole."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers import kineto_chunks
from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.readers.kineto_events import Trace
from llm_perf_opt.regions.columns import Timeline

RECORDING = Path(__file__).parent / "recordings" / "kineto-torch2.11-h200-2layers.json.gz"
TEXT = gzip.decompress(RECORDING.read_bytes()).decode()
SMALL, WHOLE = 50_000, 1 << 26

Layout = Callable[[], str]


def loaded() -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(TEXT)
    return trace


def rewritten(change: Callable[[dict[str, Any]], None], **layout: Any) -> str:
    trace = loaded()
    for event in trace["traceEvents"]:
        change(event)
    return json.dumps(trace, **layout)


def without_annotations() -> str:
    trace = loaded()
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != "user_annotation"]
    return json.dumps(trace)


def name_first() -> str:
    trace = loaded()
    trace["traceEvents"] = [dict(sorted(event.items())) for event in trace["traceEvents"]]
    return json.dumps(trace)


def whole_microseconds() -> str:
    def change(event: dict[str, Any]) -> None:
        event.update(
            {key: 1_600_000_000_000_000 * (key == "ts") + int(event[key]) for key in ("ts", "dur") if key in event}
        )

    return rewritten(change)


def named_threads() -> str:
    return rewritten(lambda event: event.update({"tid": str(event["tid"])}), indent=4)


# How others write the same: re-dumped, indented, sorted, since 1970, with what JSON does not know.
LAYOUTS: dict[str, Layout] = {
    "as recorded": lambda: TEXT,
    "re-dumped": lambda: json.dumps(loaded()),
    "compact": lambda: json.dumps(loaded(), separators=(",", ":")),
    "events alone": lambda: json.dumps(loaded()["traceEvents"]),
    "no annotations": without_annotations,
    "name first": name_first,
    "since 1970, with decimals": lambda: TEXT.replace('"ts": 385', '"ts": 171285'),
    "since 1970, whole microseconds": whole_microseconds,
    "threads as strings": named_threads,
    "NaN": lambda: TEXT.replace('"est. achieved occupancy %": 0', '"est. achieved occupancy %": NaN'),
    "tab in a name": lambda: TEXT.replace("aten::view", "aten::\tview"),
    "quote in a name": lambda: TEXT.replace("aten::view", 'aten::\\"view'),
}


def read(text: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> Timeline:
    monkeypatch.setattr(kineto_chunks, "CHUNK", chunk)
    return read_kineto(io.BytesIO(gzip.compress(text.encode(), 1)), "trace")


def content(timeline: Timeline) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a timeline, names and threads spelled out; the order of rows on the host means nothing."""
    found = {}
    for part in ("kernels", "copies", "ranges", "host"):
        rows = getattr(timeline, part)
        columns = [
            getattr(rows, name, None) for name in ("start", "end", "process", "thread", "device", "host_time", "kind")
        ]
        named = [timeline.strings[number] for number in rows.name.tolist()]
        found[part] = sorted(zip(*(c.tolist() for c in columns if c is not None), named, strict=True))
    config = timeline.kernels.config
    assert config is not None
    return {**found, "grid": sorted(map(tuple, config.grid.tolist())), "operators": [(timeline.operators,)]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_say_what_the_whole_says(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LAYOUTS[layout]()
    whole = content(read(text, WHOLE, monkeypatch))
    assert whole["kernels"]
    assert content(read(text, SMALL, monkeypatch)) == whole


@pytest.mark.parametrize("layout", ["as recorded", "re-dumped", "compact"])
def test_most_events_of_a_usual_trace_are_never_decoded(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_chunks, "CHUNK", SMALL)
    parts = kineto_chunks.unpacked_parts(io.BytesIO(LAYOUTS[layout]().encode()), "trace")
    decoded: list[Any] = []
    chunks = kineto_chunks.Chunks(parts, lambda events, known: decoded.extend(events), Trace().operators)
    assert chunks.dropped > 2000
    assert 800 < len(decoded) < 2000
    assert len(chunks.rest) < 4 * SMALL


@pytest.mark.parametrize("at", [0.3, 0.7, 0.999])
def test_a_large_trace_that_is_damaged_or_cut_is_refused(at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TEXT.index('"ph"', int(at * len(TEXT)) - 2000)
    with pytest.raises(UnreadableInput, match="truncated"):
        read(TEXT[: place + 20], SMALL, monkeypatch)
    with pytest.raises(UnreadableInput, match="not valid JSON") as refusal:
        read(TEXT[:place] + "\0" + TEXT[place:], SMALL, monkeypatch)
    assert f"from character {place} " in str(refusal.value)
