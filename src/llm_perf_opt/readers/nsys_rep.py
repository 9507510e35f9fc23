"""`.nsys-rep`: NVIDIA's closed format, read by letting the installed nsys export it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from llm_perf_opt.errors import MissingTool, UnreadableInput
from llm_perf_opt.readers.nsys_tool import find_nsys

_TIMEOUT_S = 1800


def export_nsys_rep(path: Path, source: str, folder: Path) -> Path:
    """Export `path` to SQLite inside `folder` and return the new file."""
    nsys = find_nsys()
    if nsys is None:
        raise MissingTool(
            f"{source} is an .nsys-rep file, which only nsys can open, and no nsys was found here.",
            "On a machine that has it run: nsys export --type sqlite -o OUT.sqlite FILE.nsys-rep  and give OUT.sqlite instead.",
        )
    target = folder / "export.sqlite"
    options = ["--type", "sqlite", "--force-overwrite", "true", "-o", str(target)]
    argv = [str(nsys), "export", *options, str(path.resolve())]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise UnreadableInput(f"nsys did not finish exporting {source} within {_TIMEOUT_S // 60} minutes.") from error
    except subprocess.CalledProcessError as error:
        raise UnreadableInput(
            f"nsys could not export {source}: {_last_line(error.stderr or error.stdout)}",
            "A report of a newer nsys needs that nsys or a later one; run its `nsys export --type sqlite` yourself.",
        ) from error
    # nsys may say nothing, exit 0, and leave no file.
    if not target.exists() or target.stat().st_size == 0:
        raise UnreadableInput(
            f"nsys exported {source} without an error, but wrote nothing: {_last_line(done.stderr or done.stdout)}",
            "Export it by hand to see why: nsys export --type sqlite -o OUT.sqlite FILE.nsys-rep",
        )
    return target


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "(no message)"
