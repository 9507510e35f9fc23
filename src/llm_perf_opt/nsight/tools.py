"""Finding ncu and nsys, and asking them what they are.

The order is the same for both: the configured path, the environment variable, PATH, the toolkit that
CUDA_HOME names, then the folders of NVIDIA's installers, newest first. What was named explicitly is used or refused, never replaced by
another; what was only found is passed over where it does not run (CUDA's `bin/ncu` is a script that
stays behind when the package it starts has been removed).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

from llm_perf_opt.errors import MissingTool
from llm_perf_opt.process.ask import Questions, ask
from llm_perf_opt.readers import nsys_tool
from llm_perf_opt.readers.ncu_module import NCU_PLACES, NCU_VARIABLE, installed_ncu

if TYPE_CHECKING:  # imported where they are needed: a run asks its questions before it imports anything else
    from llm_perf_opt.nsight.help_text import KnownOptions

Argv = tuple[str, ...]
NSYS_VARIABLE = nsys_tool.ENVIRONMENT_VARIABLE

_PRODUCT = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}
_VERSION = re.compile(r"\bversion\s+v?(\d+(?:\.\d+)+)", re.IGNORECASE)

# Nsight Systems' importer needs it and does not bring it; without it nsys exits 0 and leaves no report.
IMPORTER_LIBRARY = "libdw.so.1"


@define(frozen=True)
class Tool:
    """An installed profiler that has answered."""

    name: str  # "ncu" | "nsys"
    path: Path
    version: str  # "2025.3.1.0"
    source: str = field(default="", eq=False)  # how it was found: a variable, PATH, an install folder

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_ncu(configured: str | os.PathLike[str] | None = None, *, root: Path = Path("/")) -> Tool:
    """The ncu to use; `MissingTool` says where was looked. `root`: below which the install folders are."""
    return _find("ncu", configured, NCU_VARIABLE, installed_ncu(root), NCU_PLACES)


def find_nsys(configured: str | os.PathLike[str] | None = None, *, root: Path = Path("/")) -> Tool:
    """The nsys to use, that inside Nsight Compute included; `MissingTool` says where was looked."""
    return _find("nsys", configured, NSYS_VARIABLE, nsys_tool.installed_nsys(root), nsys_tool.PLACES)


def importer_of(nsys: str | os.PathLike[str]) -> Path | None:
    """The program beside nsys that makes a report of its raw stream; None where it is not where it usually is."""
    # `bin/nsys` and `target-linux-x64/nsys` have the same parent; a wrapper script resolves to neither.
    for program in dict.fromkeys((Path(nsys).resolve(), Path(nsys))):
        for folder in ("host-linux-*", "linux-desktop-*"):
            if found := sorted(program.parent.parent.glob(f"{folder}/QdstrmImporter")):
                return found[-1]
    return None


def tool_version(path: str | os.PathLike[str], timeout_s: float | None = None) -> str:
    """What `--version` says, as in "2025.3.1.0"; `MissingTool` where the program does not run or is no profiler."""
    output = _output((os.fspath(path), "--version"), timeout_s)
    if found := _VERSION.search(output):
        return found[1]
    said = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
    raise MissingTool(
        f"{os.fspath(path)} --version names no version; it says: {said}", "Give the path of ncu or nsys itself."
    )


@cache
def known_options(tool: Tool) -> KnownOptions:
    """The options this very installation understands, for `help_text.validate`; asked once."""
    from llm_perf_opt.nsight.help_text import parse_ncu_help, parse_nsys_help

    parse = parse_nsys_help if tool.name == "nsys" else parse_ncu_help
    return parse(*_answers(_about_options(tool.name, os.fspath(tool.path)), _output))


@cache
def said_about_sampling(nsys: Tool) -> tuple[str, str]:
    """What this nsys says of the GPUs it can sample, and of the sets of metrics it has; asked once."""

    def output_or_why_not(argv: Argv) -> str:
        try:
            return _output(argv)
        except MissingTool as error:  # a run can do without
            return error.message

    devices, sets = _answers(_about_sampling(os.fspath(nsys.path)), output_or_why_not)
    return devices, sets


def _about_options(name: str, program: str) -> list[Argv]:
    if name == "nsys":
        return [(program, "profile", "--help")]
    return [(program, option) for option in ("--help", "--list-sets", "--list-sections")]


def _about_sampling(program: str) -> list[Argv]:
    return [(program, "profile", option) for option in ("--gpu-metrics-devices=help", "--gpu-metrics-set=help")]


def _answers(questions: Sequence[Argv], output: Callable[[Argv], str]) -> list[str]:
    """Each answer takes ncu about a second, nearly all of it waiting: all are asked at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(output, questions))


def library_path_for(nsys: str | os.PathLike[str]) -> str | None:
    """The LD_LIBRARY_PATH under which nsys's importer finds its library.

    None where the system has the library already, or where it is nowhere: see `has_importer_library`.
    """
    if has_importer_library():
        return None
    home = Path(nsys).resolve().parent
    folders = [
        home,
        *sorted(home.parent.glob("host-linux-*")),
        *sorted(Path("/opt/nvidia").glob("nsight-systems*/*/host-linux-*")),
    ]
    for folder in folders:
        if (folder / IMPORTER_LIBRARY).exists():
            return os.pathsep.join(part for part in (str(folder), os.environ.get("LD_LIBRARY_PATH", "")) if part)
    return None


def has_importer_library() -> bool:
    """Does a program started from here find libdw?"""
    try:
        ctypes.CDLL(IMPORTER_LIBRARY)
    except OSError:
        return False
    return True


def _find(
    name: str,
    configured: str | os.PathLike[str] | None,
    variable: str,
    installed: Sequence[Path],
    places: Sequence[str],
) -> Tool:
    for named, source in ((configured, "the configuration"), (os.environ.get(variable), variable)):
        if named:
            return _named(name, os.fspath(named), source)
    on_path = shutil.which(name)
    problems = []
    candidates = [(Path(on_path), "PATH")] if on_path else []
    for candidate, source in [*candidates, *((path, "an install folder") for path in installed)]:
        try:
            return Tool(name, candidate, tool_version(candidate), source)
        except MissingTool as error:
            problems.append(error.message)
    from llm_perf_opt.nsight.messages import TEXTS

    on_path_says = "that on PATH does not run" if on_path else "PATH has none"
    # A dozen patterns would bury what to do: the folders they begin with.
    below = dict.fromkeys("/".join(place.split("/")[: 4 if place.startswith("/usr/local/") else 3]) for place in places)
    looked = (
        f"{variable} is not set, {on_path_says}, and nothing that runs is where NVIDIA's installers put it "
        f"(below {', '.join(f'{folder}/' for folder in below)})"
    )
    without = " Without any profiler: llm-perf measure -- CMD" if name == "nsys" else ""
    raise MissingTool(
        f"No usable {name} ({_PRODUCT[name]}) was found: {looked}." + "".join(f" {problem}" for problem in problems),
        f"Install it (it comes with the CUDA toolkit; from NVIDIA's package repository: apt install cuda-{_package(name)}-13-0 "
        f"or the one of your CUDA version; or https://developer.nvidia.com/{_package(name)}), or set {variable}=/path/to/{name}. {TEXTS['ask_doctor']}{without}",
    )


def _named(name: str, named: str, source: str) -> Tool:
    fix = f"Give the path of the program {name} itself, or remove the setting to have it searched for."
    path = shutil.which(named)
    if path is None:
        what = "is a folder" if Path(named).is_dir() else "is not a program that can be run"
        raise MissingTool(f"{named}, given as {name} by {source}, {what}.", fix)
    try:
        return Tool(name, Path(path), tool_version(path), source)
    except MissingTool as error:
        raise MissingTool(f"{named}, given as {name} by {source}, does not work: {error.message}", fix) from error


def _package(name: str) -> str:
    return _PRODUCT[name].lower().replace(" ", "-")


class Asked(Questions):
    """The questions of a run to its tools, all asked at once and while the run does something else."""

    def __init__(self, *, nsys: bool, ncu: bool) -> None:
        super().__init__()
        self._nsys = self._ask("nsys", NSYS_VARIABLE, find_nsys, nsys_tool.installed_nsys) if nsys else None
        self._ncu = self._ask("ncu", NCU_VARIABLE, find_ncu, installed_ncu) if ncu else None

    def _ask(
        self, name: str, variable: str, find: Callable[[], Tool], installed: Callable[[], Sequence[Path]]
    ) -> Future[Tool]:
        # The first place to look at is nearly always the right one: its options are asked for beside its version.
        named = os.environ.get(variable)
        first = shutil.which(named or name) or (None if named else next(map(os.fspath, installed()), None))
        if first is not None:
            for argv in [*_about_options(name, first), *(_about_sampling(first) if name == "nsys" else [])]:
                _early[argv] = self._pool.submit(_ask_now, argv)
        return self._pool.submit(find)

    def tools(self) -> tuple[Tool | None, Tool | None]:
        """nsys and ncu, each with its options known; raises what was wrong with the first."""
        nsys, ncu = (None if asked is None else asked.result() for asked in (self._nsys, self._ncu))
        for tool in (nsys, ncu):
            if tool is not None:
                known_options(tool)
        if nsys is not None:
            said_about_sampling(nsys)
        return nsys, ncu

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        _early.clear()


_early: dict[Argv, Future[str]] = {}  # answers that were asked for before anybody needs them; each is used once


def _output(argv: Argv, timeout_s: float | None = None) -> str:
    """Standard output and error of a short command; `MissingTool` where it does not answer."""
    if (asked := _early.pop(argv, None)) is not None:
        return asked.result()
    return _ask_now(argv, timeout_s)


def _ask_now(argv: Argv, timeout_s: float | None = None) -> str:
    answer = ask(argv, timeout_s=timeout_s, together=True)
    if answer.exit_code is None:
        raise MissingTool(f"{' '.join(argv)}: {answer.errors}.", "Run it by hand, and check: ulimit -a")
    return answer.output
