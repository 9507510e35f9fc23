"""A large trace is read in chunks, and says what the same trace says when it is read whole."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers import kineto_chunks
from llm_perf_opt.readers.kineto import read_kineto
from llm_perf_opt.readers.kineto_code import Found
from llm_perf_opt.readers.kineto_events import Trace
from llm_perf_opt.readers.kineto_helper import Helper
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.operator_calls import operator_spans

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


def with_shapes_and_stacks() -> str:
    """As `record_shapes` and `with_stack` add them: inputs of operators, functions around them, modules."""
    trace, events = loaded(), []
    for number, event in enumerate(trace["traceEvents"]):
        if event.get("cat") == "cpu_op":
            rows = 8 * (1 + number % 3)
            dims = [[rows, 16], [16, 32], []]
            kinds = ["c10::BFloat16", "c10::BFloat16", "Scalar"]
            event["args"] |= {"Concrete Inputs": ["", "", f"[{number}]"], "Input type": kinds}
            event["args"] |= {"Input Strides": [[16, 1], [1, 16], []], "Input Dims": dims, "Ev Idx": number}
            files = (
                "train.py(5): main",
                "torch/nn/linear.py(120): forward",
                "nn.Module: Linear_0",
                "<string>(3): \u00e9",
            )
            function = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
            events.append(
                function | {"cat": "python_function", "name": files[number % 4], "args": {"Python id": number}}
            )
        events.append(event)
    return json.dumps(trace | {"traceEvents": events})


def events_behind() -> str:
    """Events in a list that is not `traceEvents` are none of the trace."""
    trace = loaded()
    events = sorted(trace.pop("traceEvents"), key=lambda event: event.get("cat") == "cpu_op")
    return json.dumps(trace | {"traceEvents": events, "otherEvents": events[-900:]})


def events_before() -> str:
    trace = loaded()
    return json.dumps({"other": [1, {"x": 1, "traceEvents": trace["traceEvents"][100:900]}]} | trace)


def events_in_arguments() -> str:
    def change(event: dict[str, Any]) -> None:
        if event.get("cat") == "cpu_op":
            event["args"]["within"] = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}

    return rewritten(change, separators=(",", ":"))


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
    "shapes and stacks": with_shapes_and_stacks,
    "events behind the list": events_behind,
    "events before the list": events_before,
    "events in arguments": events_in_arguments,
    "NaN": lambda: TEXT.replace('"est. achieved occupancy %": 0', '"est. achieved occupancy %": NaN'),
    "tab in a name": lambda: TEXT.replace("aten::view", "aten::\tview"),
    "quote in a name": lambda: TEXT.replace("aten::view", 'aten::\\"view'),
}


def read(text: str, chunk: int, monkeypatch: pytest.MonkeyPatch, helper: Helper | None = None) -> Timeline:
    monkeypatch.setattr(kineto_chunks, "CHUNK", chunk)
    return read_kineto(io.BytesIO(gzip.compress(text.encode(), 1)), "trace", helper)


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
    calls, code, strings = timeline.calls, timeline.code, [*timeline.strings, "unknown"]
    columns = (calls.start, calls.end, calls.thread, calls.name, calls.inputs)
    found["calls"] = sorted(
        (*row[:3], strings[row[3]], strings[row[4]]) for row in zip(*map(list, columns), strict=True)
    )
    spans = zip(code.start.tolist(), code.end.tolist(), code.thread.tolist(), code.place.tolist(), strict=True)
    found["code"] = sorted((*row[:3], strings[row[3]]) for row in spans)
    return {
        **found,
        "engine": [tuple(timeline.engine_threads)],
        "grid": sorted(map(tuple, config.grid.tolist())),
        "operators": [(timeline.operators,)],
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_say_what_the_whole_says(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LAYOUTS[layout]()
    whole = content(read(text, WHOLE, monkeypatch))
    assert whole["kernels"]
    assert content(read(text, SMALL, monkeypatch)) == whole


def test_members_of_a_packed_file_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one unpacks to more than is taken at once."""
    whole, text = content(read(TEXT, WHOLE, monkeypatch)), TEXT.encode()
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text[:200_000]) + gzip.compress(text[200_000:]))
    monkeypatch.setattr(kineto_chunks, "CHUNK", SMALL)
    with (tmp_path / "trace.json.gz").open("rb") as file:
        assert content(read_kineto(file, "trace")) == whole


@pytest.mark.process
@pytest.mark.parametrize("layout", ["as recorded", "compact", "name first", "shapes and stacks", "tab in a name"])
def test_a_second_process_changes_nothing(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LAYOUTS[layout]()
    whole = content(read(text, WHOLE, monkeypatch))
    with contextlib.closing(Helper()) as helper:
        assert content(read(text, SMALL, monkeypatch, helper)) == whole


@pytest.mark.process
def test_a_second_process_that_ends_early_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content(read(TEXT, WHOLE, monkeypatch))
    asked = []

    class Mortal(Helper):
        def answer(self, slot: int) -> Found | None:
            asked.append(slot)
            if len(asked) == 3:
                os.kill(self._pid, signal.SIGKILL)
            return super().answer(slot)

    with contextlib.closing(Mortal()) as helper:
        assert content(read(TEXT, SMALL, monkeypatch, helper)) == whole
    assert len(asked) >= 3


@pytest.mark.process
def test_a_second_process_ends_with_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the reader is killed: nobody is left to go on."""
    told, tell = os.pipe()
    reader = os.fork()
    if reader == 0:
        helper = Helper()
        os.write(tell, str(helper._pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(reader, 0)
    pid = int(os.read(told, 20))
    os.close(told)
    os.close(tell)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state = (
                Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
            )
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    pytest.fail("it is still there")


def test_lines_shapes_and_operators_of_a_large_trace_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = read(with_shapes_and_stacks(), SMALL, monkeypatch)
    operators = sum(event.get("cat") == "cpu_op" for event in loaded()["traceEvents"])
    assert len(timeline.calls) == operators > 1000
    assert {timeline.strings[number] for number in timeline.calls.inputs.tolist()} == {
        f"bf16[{rows},16] bf16[16,32]s -" for rows in (8, 16, 24)
    }
    assert {timeline.strings[place] for place in timeline.code.place.tolist()} == {"train.py(5): main"}
    spans, texts = operator_spans(timeline)
    assert any(text.startswith("aten::linear ") and text.endswith("×32×16") for text in texts)
    assert len(spans)


@pytest.mark.parametrize("layout", ["as recorded", "re-dumped", "compact", "shapes and stacks"])
def test_most_events_of_a_usual_trace_are_never_decoded(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_chunks, "CHUNK", SMALL)
    parts = kineto_chunks.unpacked_parts(io.BytesIO(LAYOUTS[layout]().encode()), "trace")
    decoded: list[Any] = []
    chunks = kineto_chunks.Chunks(parts, lambda events, _: decoded.extend(events), Trace().code)
    assert chunks.dropped > 2000
    assert 700 < len(decoded) < 2000
    assert len(chunks.rest) < 4 * SMALL


@pytest.mark.parametrize("at", [0.3, 0.7, 0.999])
def test_a_large_trace_that_is_damaged_or_cut_is_refused(at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TEXT.index('"ph"', int(at * len(TEXT)) - 2000)
    with pytest.raises(UnreadableInput, match="truncated"):
        read(TEXT[: place + 20], SMALL, monkeypatch)
    with pytest.raises(UnreadableInput, match="not valid JSON") as refusal:
        read(TEXT[:place] + "\0" + TEXT[place:], SMALL, monkeypatch)
    assert f"from character {place} " in str(refusal.value)


@pytest.mark.process
@pytest.mark.parametrize("at", [0.3, 0.7, 0.999])
def test_a_second_process_does_not_hide_damage(at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TEXT.index('"ph"', int(at * len(TEXT)) - 2000)
    with contextlib.closing(Helper()) as helper, pytest.raises(UnreadableInput, match="not valid JSON") as refusal:
        read(TEXT[:place] + "\0" + TEXT[place:], SMALL, monkeypatch, helper)
    assert f"from character {place} " in str(refusal.value)
