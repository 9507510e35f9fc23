"""The environment that makes every Python below a command annotate the PyTorch models it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_perf_opt.errors import UserError

DEFAULT_DEPTH = 3
# Put on PYTHONPATH: Python imports `sitecustomize` from there when it starts.
INJECTED = Path(__file__).resolve().with_name("payload")
LEVERS = INJECTED / "_llm_perf_annotate" / "levers"  # files, one a lever
ENDING = ".ending"  # in the folder of the timers, once the program is being ended: all times are written then
OWN_CODE = INJECTED.parents[1] / "metrics" / "own_code.json"  # which code is the program's own


def environment(
    mode: str,
    depth: int = DEFAULT_DEPTH,
    base_env: Mapping[str, str] | None = None,
    *,
    ranges: bool = False,
    log: Path | None = None,
    timers: Path | None = None,
    steps: bool = False,
) -> dict[str, str]:
    """The variables to add to `base_env` (by default, our own environment) for a command.

    `depth`: levels of modules that get a range of their own, below the outermost. `ranges`: count the ranges that are
    opened, whoever does, mark all modules for it, and let `CaptureWindows` act on them; works without annotation too.
    `log`: a file in which the processes note what they did; `read_log` reads it. `timers`: a folder in which they
    note how long each range took. `steps`: have them note now and then how many steps they have run.
    """
    if os.pathsep in str(INJECTED) and mode == "off":
        ranges = False  # capture windows save time, no more
    elif os.pathsep in str(INJECTED):
        raise UserError(
            f"Programs cannot be annotated from {INJECTED}, because PYTHONPATH cannot hold a path with {os.pathsep!r}.",
            "Install llm-perf-opt elsewhere, or use --annotate off.",
        )
    base = os.environ if base_env is None else base_env
    if mode == "off" and not ranges:
        # An outer run may have switched it on.
        ours = (
            "LLM_PERF_ANNOTATE",
            "LLM_PERF_RANGES",
            "LLM_PERF_MARKERS",
            "LLM_PERF_WINDOWS",
            "LLM_PERF_TIMERS",
            "LLM_PERF_LINES",
            "LLM_PERF_TRY",
            "LLM_PERF_STEPS",
        )
        return {name: "off" for name in ours if name in base}
    theirs = base.get("PYTHONPATH", "")
    first = theirs.split(os.pathsep)[0] if theirs else ""
    path = theirs if first == str(INJECTED) else os.pathsep.join(p for p in (str(INJECTED), theirs) if p)
    added = {
        "PYTHONPATH": path,
        "LLM_PERF_ANNOTATE": mode,
        "LLM_PERF_ANNOTATE_DEPTH": str(depth),
        "LLM_PERF_RANGES": "1" if ranges else "0",
        "LLM_PERF_MARKERS": "recorded" if ranges and timers is None else "",
        "LLM_PERF_WINDOWS": "",  # that of an outer run is not this one's
        "LLM_PERF_TIMERS": "" if timers is None else str(timers.resolve()),
        "LLM_PERF_LINES": "",
        "LLM_PERF_TRY": "",
        "LLM_PERF_STEPS": "1" if steps else "",
    }
    if log is not None:
        added["LLM_PERF_ANNOTATE_LOG"] = str(log.resolve())
    return added


def with_lines(
    environment: Mapping[str, str], base_env: Mapping[str, str] | None = None, *, log: Path | None = None
) -> dict[str, str]:
    """The variables with those that mark the lines of the program in a recording of nsys. `log`: see `environment`."""
    if os.pathsep in str(INJECTED):
        return dict(environment)
    base = os.environ if base_env is None else base_env
    theirs = base.get("PYTHONPATH", "")
    path = os.pathsep.join(p for p in (str(INJECTED), theirs) if p)
    noted = {} if log is None else {"LLM_PERF_ANNOTATE_LOG": str(log.resolve())}
    return {"PYTHONPATH": path, **noted, **environment, "LLM_PERF_LINES": str(OWN_CODE.resolve())}


def with_levers(
    environment: Mapping[str, str],
    folder: Path,
    levers: Sequence[tuple[str, Path]],
    *,
    outputs: bool,
    repeat: tuple[int, int] = (0, 0),
    longest: int = 0,
    look_at: int = 0,
) -> dict[str, str]:
    """The variables with those that pull levers, by name and file, in every Python process that imports torch.

    `folder`: where the processes note what became of them. `outputs`: have them note what the program computes, too.
    `repeat`: which `generate()` of the program is called again, and how often. `longest`: tokens that its caches held
    at most, in a run before. `look_at`: the call of a model whose launches and kernels are noted.
    """
    named = json.dumps([[name, str(file)] for name, file in levers])
    return {
        **environment,
        "LLM_PERF_TRY": str(folder.resolve()),
        "LLM_PERF_LEVERS": named,
        "LLM_PERF_OUTPUTS": str(int(outputs)),
        "LLM_PERF_LONGEST": str(longest),
        "LLM_PERF_STEP": str(look_at),
        "LLM_PERF_REPEAT": ":".join(map(str, repeat)) if repeat[1] else "",
    }


def under_ncu(environment: Mapping[str, str], *, windows: bool) -> dict[str, str]:
    """The variables for the program under ncu: marker ranges are of use to capture windows alone, and are not recorded."""
    if "LLM_PERF_MARKERS" not in environment:
        return dict(environment)
    return {**environment, "LLM_PERF_MARKERS": "counted" if windows else ""}
