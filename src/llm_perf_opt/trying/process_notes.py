"""What the processes of one run noted: what the program did, which levers took effect, what was computed."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.untrusted import parse_json, read_text

Floats = NDArray[np.float64]
CHANNELS = ("outputs", "loss", "tokens")
REPEATED = "generate repeated"  # what is counted of calls that the trial adds
NAMED = "named"  # the channel of what --output names
_NUMBER = re.compile(r"(-?\d+\.?\d*(?:[eE][-+]?\d+)?)")
_LARGEST = 200_000_000
_MOST_PROCESSES = 256


@define(frozen=True, eq=False)
class Computed:
    """A sample of one tensor: of one call of a model, one loss, or one text."""

    call: int
    shape: tuple[int, ...]
    dtype: str
    sample: Floats  # NaN where it was no number
    rms: float
    given: tuple[int, ...] = ()  # tokens the model was called with
    top: tuple[int, ...] = ()  # the largest of the last position, by row
    gap: tuple[float, ...] = ()  # between that and the second


@define
class ProcessNotes:
    """All processes of one run together."""

    processes: int = 0
    models: list[str] = Factory(list)
    counts: dict[str, int] = Factory(dict)
    places: dict[str, str] = Factory(dict)  # by what was counted: the first line of the program that did so
    evidence: dict[str, tuple[bool, str]] = Factory(dict)  # by lever: did it take effect, and how that is known
    computed: dict[tuple[str, str], list[Computed]] = Factory(dict)  # by rank and channel
    calls: dict[tuple[str, str], int] = Factory(dict)  # the same, how many there were
    launches: int | None = None  # of one step, on a GPU
    kernels: dict[str, int] = Factory(dict)  # the same, by name


def read_notes(folder: Path) -> ProcessNotes:
    """Files that are damaged are left out."""
    found = ProcessNotes()
    for file in sorted(folder.glob("*.json"))[:_MOST_PROCESSES]:
        try:
            _add(found, parse_json(read_text(file, _LARGEST)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def use_text(notes: ProcessNotes, text: str) -> None:
    """Take a text that the program printed or wrote for what it computes: its numbers, and the words between them."""
    parts = _NUMBER.split(text)
    numbers = np.array([float(number) for number in parts[1::2]])
    size = float(np.sqrt(np.mean(np.square(numbers)))) if len(numbers) else 0.0
    words = zlib.crc32("\0".join(parts[0::2]).encode())
    key = ("", NAMED)
    notes.computed = {key: [Computed(1, (len(numbers), words), "float32", numbers, size)]}
    notes.calls = {key: 1}


def _add(found: ProcessNotes, content: dict[str, Any]) -> None:
    rank, outputs = str(content["rank"]), content["outputs"]
    computed = {
        (rank, channel): [_computed(one) for one in outputs.get(channel, ())] for channel in CHANNELS if outputs
    }
    found.processes += 1
    found.models += [str(name)[:80] for name in content["models"] if name not in found.models]
    for what, count in content["counts"].items():
        found.counts[str(what)] = found.counts.get(str(what), 0) + int(count)
    found.places |= {str(k): str(v)[:400] for k, v in content["places"].items() if v and str(k) not in found.places}
    for name, applied, text in content["levers"]:
        before = found.evidence.get(str(name))
        if before is None or (applied and not before[0]):  # one process is enough: a launcher calls no model
            found.evidence[str(name)] = (
                bool(applied),
                str(text).strip().partition("\n")[0][:400],
            )  # torch explains at length
    if (step := content.get("step")) and found.launches is None:
        found.launches = int(step["launches"])
        found.kernels = {str(name)[:300]: int(count) for name, count in step["kernels"].items()}
    for key, values in computed.items():
        if values:
            found.computed.setdefault(key, []).extend(values)
            found.calls[key] = found.calls.get(key, 0) + int(outputs["calls"].get(key[1], 0))


def _computed(content: dict[str, Any]) -> Computed:
    sample = np.array([np.nan if value is None else value for value in content["sample"]], dtype=np.float64)
    rms = content.get("rms")
    return Computed(
        int(content["call"]),
        tuple(map(int, content["shape"])),
        str(content["dtype"]),
        sample,
        float("nan") if rms is None else float(rms),
        tuple(map(int, content.get("given", ()))),
        tuple(map(int, content.get("top", ()))),
        tuple(float("nan") if value is None else float(value) for value in content.get("gap", ())),
    )
