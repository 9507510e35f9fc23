"""How a recording gets from the process that read it to the one that asked: numbers as they lie in memory, the rest as JSON.

Not pickle: what was read is untrusted, and so is the process that read it. Columns are written one behind the other
into a file in memory, and mapped where they are needed; only classes of the list below are made, and only numbers.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from typing import IO, Any

import attrs
import numpy as np

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions import columns
from llm_perf_opt.regions.collective_messages import Messages
from llm_perf_opt.regions.traffic import Traffic

_OF_COLUMNS = (
    "Timeline",
    "Work",
    "LaunchConfig",
    "Ranges",
    "GraphNodes",
    "HostEvents",
    "CodeSpans",
    "OperatorCalls",
    "Process",
    "OnlyOnce",
    "GpuSamples",
)
_OF_COUNTERS = ("CounterSet", "Action", "MetricInfo", "Rule")
_CLASSES = {name: getattr(columns, name) for name in (*_OF_COLUMNS, *_OF_COUNTERS)}
_CLASSES |= {"Diagnosis": Diagnosis, "Traffic": Traffic, "Messages": Messages}
_DTYPES = {"int64": np.int64, "int32": np.int32, "bool": np.bool_}
_PLAIN = {str, int, float, bool, type(None)}
_MARK = "@"  # the key that says what an object is; one that has it by chance is written as pairs
_ALIGNED = 64


def write(value: Any, out: IO[bytes]) -> tuple[int, int]:
    """Write a value; returns where its description begins, and its length."""

    def tagged(value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return value if set(map(type, value)) <= _PLAIN else [tagged(inner) for inner in value]
        if kind is dict:
            if set(map(type, value)) <= {str} and _MARK not in value:
                simple = set(map(type, value.values())) <= _PLAIN
                return value if simple else {key: tagged(inner) for key, inner in value.items()}
            return {_MARK: "dict", "items": [[tagged(key), tagged(inner)] for key, inner in value.items()]}
        if kind is tuple:
            return {_MARK: "tuple", "items": [tagged(inner) for inner in value]}
        if kind is np.ndarray:
            return array(value)
        for base in (str, int, float):  # numbers of NumPy, and texts that know what they were
            if isinstance(value, base) or (base is int and isinstance(value, np.integer)):
                return base(value)
        fields = [field for field in attrs.fields(kind) if field.init]
        return {_MARK: kind.__name__} | {field.alias: tagged(getattr(value, field.name)) for field in fields}

    def array(values: Any) -> dict[str, Any]:
        at = -(-out.tell() // _ALIGNED) * _ALIGNED
        out.seek(at)
        out.write(np.ascontiguousarray(values).data.cast("B") if values.size else b"")
        return {_MARK: "array", "dtype": values.dtype.name, "shape": list(values.shape), "at": at}

    described = json.dumps(tagged(value)).encode("ascii")
    at = out.tell()
    out.write(described)
    out.flush()
    return at, len(described)


def read(fd: int, at: int, length: int) -> Any:
    """What was written, its columns mapped; `ValueError` and its like where it makes no sense."""
    if at < 0 or length < 1 or at + length > os.fstat(fd).st_size:
        raise ValueError("the answer lies outside its file")
    # Private: a page is copied where somebody changes it.
    mapped = mmap.mmap(fd, at + length, access=mmap.ACCESS_COPY)

    def made(found: dict[str, Any]) -> Any:
        kind = found.pop(_MARK, None)
        if kind is None:
            return found
        if kind == "dict":
            return dict(found["items"])
        if kind == "tuple":
            return tuple(found["items"])
        if kind != "array":
            return _CLASSES[kind](**found)
        shape = tuple(map(int, found["shape"]))
        if min(shape) < 0 or not 0 <= found["at"] <= at:
            raise ValueError("a column lies outside its file")
        dtype: Any = _DTYPES[found["dtype"]]
        count = math.prod(shape)
        return np.frombuffer(mapped, dtype, count, found["at"]).reshape(shape) if count else np.zeros(shape, dtype)

    return json.loads(mapped[at : at + length], object_hook=made)
