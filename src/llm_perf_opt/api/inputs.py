"""From what the user typed to recordings: files, run directories, ranks."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, define, evolve

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import MissingTool, UnreadableInput, UserError
from llm_perf_opt.rundir.job import is_job, rank_folders
from llm_perf_opt.rundir.layout import MANIFEST, input_patterns, is_of_verification, rank_of_folder, verification_files
from llm_perf_opt.rundir.layout import VERIFY as VERIFY
from llm_perf_opt.untrusted import parse_json, read_text

if TYPE_CHECKING:
    from llm_perf_opt.readers.open import Observer, Progress
    from llm_perf_opt.regions.columns import CounterSet, Recording, Timeline


@define
class _Importing:
    """Imports what comes after reading while another process reads: it takes as long as a small file does."""

    observer: Observer
    meanwhile: Callable[[], object]

    def begin(self, source: str, total: int | None) -> Progress:
        progress = self.observer.begin(source, total)
        import llm_perf_opt.analysis.build  # noqa: F401
        from llm_perf_opt.analysis.package_tables import read_tables

        read_tables()
        self.meanwhile()
        return progress


@define
class Inputs:
    """The files behind what was typed, to be read one by one."""

    files: list[Path]
    inside_runs: set[Path]
    duplicates: dict[Path, Path]
    inputs: list[dict[str, Any]] = Factory(list)  # what the report says of those read so far
    unreadable: list[UserError] = Factory(list)  # of runs: one that cannot be read must not cost the others
    known: Mapping[Path, Recording] = Factory(dict)  # that were read already
    measured: list[Path] = Factory(list)  # what the same program takes by itself: times for the report of the others

    @staticmethod
    def of(paths: Sequence[str], known: Mapping[Path, Recording] | None = None) -> Inputs:
        from llm_perf_opt.readers.open import is_measured

        expanded = [(Path(path), expand(Path(path))) for path in paths]
        files = [file for _, found in expanded for file in found]
        inside_runs = {file for path, found in expanded if path.is_dir() for file in found}
        measured = [file for file in files if len(files) > 1 and is_measured(file)]
        if len(measured) == len(files):  # nothing was recorded
            measured = []
        duplicates = _duplicates(files)
        return Inputs(
            [f for f in files if f not in measured], inside_runs, duplicates, known=known or {}, measured=measured
        )

    def are_timelines(self) -> bool:
        """Several timelines and nothing else: their report needs only one of them at a time."""
        from llm_perf_opt.readers.open import is_timeline

        return len(self.files) > 1 and all(is_timeline(file) for file in self.files)

    def recordings(
        self, *, quiet: bool, launch_config: bool, streams: bool = False, meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[Recording]:
        """One recording after the other; the first that cannot be read ends it, unless it is of a run.

        `meanwhile`: done while another process reads.
        """
        from llm_perf_opt.report.terminal import reading

        with reading(quiet, len(self.files)) as observer:
            for file in self.files:
                recording = self._read(file, launch_config, streams, _Importing(observer, meanwhile))
                if recording is not None:
                    self.inputs.append({"path": source_of(file), "kind": recording.kind, "bytes": file.stat().st_size})
                    yield recording
        if self.unreadable and not self.inputs:
            raise self.unreadable[0]

    def measured_runs(self, *, quiet: bool) -> list[Timeline]:
        """The runs without a profiler; to be read after the recordings."""
        others = evolve(self, files=self.measured)
        runs = list(others.recordings(quiet=quiet, launch_config=False)) if self.measured else []
        return cast("list[Timeline]", runs)

    def _read(self, file: Path, launch_config: bool, streams: bool, observer: Observer) -> Recording | None:
        from llm_perf_opt.readers.marker_ranges import for_report
        from llm_perf_opt.readers.open import read_recording
        from llm_perf_opt.readers.plausible import plausible_facts
        from llm_perf_opt.regions.columns import CounterSet, Timeline

        known = self.known.get(file)
        try:
            recording: Recording
            if isinstance(known, CounterSet):
                recording = deepcopy(known)  # the run goes on with its own
                recording.gpu_facts = plausible_facts(recording.gpu_facts)
            elif known is not None and not streams:
                recording = for_report(known, source_of(file), launch_config=launch_config)
            else:
                recording = read_recording(
                    file, source=source_of(file), launch_config=launch_config, streams=streams, observer=observer
                )
        except (UnreadableInput, MissingTool) as error:
            if file not in self.inside_runs:
                raise
            if (rank := rank_of_folder(file)) is not None:  # the files of all ranks have the same names
                error.message = f"rank {rank}: {error.message}"
            self.unreadable.append(error)
            return None
        rank = rank_of(file) if len(self.files) > 1 else rank_of_folder(file)
        noted = _noted_ranks(file) if file in self.inside_runs else {}
        if isinstance(recording, Timeline) and (noted or rank is not None):
            from llm_perf_opt.analysis.build import with_ranks

            recording = with_ranks(recording, rank, noted)
        if file in self.duplicates:
            other = source_of(self.duplicates[file])
            recording.diagnostics.append(diagnose("SAME_RECORDING", one=source_of(file), other=other))
        return recording

    def describe_unreadable(self) -> list[Diagnosis]:
        """What could not be read."""
        return [diagnose("RECORDING_UNREADABLE", message=d.message, fix=d.fix) for d in self.unreadable]


def load(
    inputs: Inputs, *, quiet: bool = False, streams: bool = False, meanwhile: Callable[[], object] = lambda: None
) -> list[Recording]:
    """Read every input; the first that cannot be read ends it. `streams`: with the stream of all GPU work."""
    # One file alone is never joined: its launch configurations need not be read.
    joined = len(inputs.files) > 1
    recordings = list(inputs.recordings(quiet=quiet, launch_config=joined, streams=streams, meanwhile=meanwhile))
    recordings[0].diagnostics += inputs.describe_unreadable()
    return recordings


@define
class SideInputs:
    """What belongs to recordings without being one."""

    calibrations: list[dict[str, Any]] = Factory(list)  # of GPUs
    formula: dict[str, dict[str, float]] = Factory(dict)  # FLOPs of the stages
    undisturbed: dict[str, float] = Factory(dict)  # seconds of the stages without a profiler
    notes: list[Diagnosis] = Factory(list)


def find_side_inputs(paths: Sequence[str], calibration: str | None) -> SideInputs:
    """Measured peaks, and what stage 1 left in the run directories."""
    from llm_perf_opt.calibration import store
    from llm_perf_opt.readers import stage_files

    found = SideInputs()
    if calibration is not None:
        found.calibrations = store.load(Path(calibration))
    else:
        try:
            found.calibrations = store.load_default()
        except UserError as error:
            found.notes.append(diagnose("CALIBRATION_UNREADABLE", message=error.message, fix=error.fix))

    def read(place: str, reader: Callable[[Path], dict[str, Any]], code: str) -> dict[str, Any]:
        files = [Path(path) / place for path in paths if Path(path).is_dir() and (Path(path) / place).is_file()]
        content: dict[str, Any] = {}
        for file in files:
            try:
                content |= reader(file)
            except (OSError, ValueError) as error:
                found.notes.append(diagnose(code, place=place, run=file.parents[1].name, error=error))
        return content

    found.formula = read(stage_files.FORMULA, stage_files.read_formula, "FORMULA_UNREADABLE")
    found.undisturbed = read(stage_files.TIMINGS, stage_files.read_stage_timings, "STAGE_TIMINGS_UNREADABLE")
    return found


def read_verification(paths: Sequence[str]) -> tuple[CounterSet | None, list[Diagnosis]]:
    """Range results that a run directory keeps to verify its estimates."""
    from llm_perf_opt.readers.open import read_recording
    from llm_perf_opt.regions.columns import CounterSet

    folder = Path(paths[0])
    files = [f for pattern in verification_files() for f in _whole_files(folder, pattern)] if folder.is_dir() else []
    if len(paths) != 1 or not files:
        return None, []
    try:
        found = read_recording(files[0], source=files[0].name)
    except (UnreadableInput, MissingTool) as error:
        return None, [diagnose("VERIFY_FAILED.unreadable", message=error.message, fix=error.fix)]
    return (found if isinstance(found, CounterSet) else None), []


def _duplicates(files: Sequence[Path]) -> dict[Path, Path]:
    """Files whose content was given before under another name; the same file twice is refused."""
    seen: dict[tuple[int, bytes, bytes], Path] = {}
    duplicates: dict[Path, Path] = {}
    for file in files if len(files) > 1 else ():
        if file.is_file() and file.stat().st_size:
            first = seen.setdefault(_fingerprint(file), file)
            if first is not file and first.resolve() == file.resolve():
                raise UserError(f"{file} was given twice, which would count everything twice.", "Give it once.")
            if first is not file:
                duplicates[file] = first
    return duplicates


def _fingerprint(file: Path) -> tuple[int, bytes, bytes]:
    """Size, beginning and end: equal for the same recording, and cheap for a large one."""
    size = file.stat().st_size
    with file.open("rb") as content:
        head = content.read(1 << 16)
        content.seek(max(size - (1 << 16), 0))
        return size, head, content.read()


def expand(path: Path) -> list[Path]:
    """The recordings of a run directory, or the file itself."""
    if not path.is_dir():
        return [path]
    if is_job(path):
        return _of_ranks(path)
    # What a resumed run was taking again when it ended, too, is better than nothing: the last attempt first.
    places = [path, *sorted(path.glob("earlier-*"), key=lambda folder: (len(folder.name), folder.name), reverse=True)]
    timelines = (_whole_files(place, pattern) for place in places for pattern in input_patterns("timeline"))
    found = next((files for files in timelines if files), [])
    measured = [file for pattern in input_patterns("measured") for file in _whole_files(path, pattern)]
    for place in places:
        counters = [file for pattern in input_patterns("counters") for file in _whole_files(place, pattern)]
        counters = counters or [
            file for pattern in input_patterns("counter table") for file in _whole_files(place, pattern)
        ]
        counters = [file for file in counters if not is_of_verification(file.name)]
        if counters:
            found += counters
            break
    if not (found := [*found, *measured]):
        raise UnreadableInput(
            f"{path} is a directory without recordings: there is no nsys/*.sqlite, ncu/*.ncu-rep or torch_profiler/trace.json* in it.",
            _what_is_in(path) or "Give a run directory of llm-perf, or the recording files themselves.",
        )
    return found


_ENDINGS = (".sqlite", ".nsys-rep", ".ncu-rep", ".trace.json")


def _what_is_in(folder: Path) -> str:
    """The newest run or recordings of a folder that is no run itself: what was meant, most likely."""
    runs = [
        path.parent for place in ("*", "*/*", "tmp/profile-output/*") for path in folder.glob(f"{place}/{MANIFEST}")
    ]
    named = [path for ending in _ENDINGS for path in folder.glob(f"*{ending}*")]
    found = sorted((path for path in (*runs, *named) if path.exists()), key=lambda path: -path.stat().st_mtime)
    if not found:
        return ""
    more = f" ({len(found) - 1} more in it)" if len(found) > 1 else ""
    return f"Name what is in it, such as the newest: {shlex.quote(str(found[0]))}{more}"


def _of_ranks(job: Path) -> list[Path]:
    """The recordings of all ranks: one that has none must not cost the others."""
    found: list[Path] = []
    for folder in rank_folders(job).values():
        with contextlib.suppress(UnreadableInput):
            found += expand(folder)
    if not found:
        raise UnreadableInput(f"No rank of {job} left a recording.", "Their logs say why: ranks/rank-*/*.log")
    return found


def _whole_files(folder: Path, pattern: str) -> list[Path]:
    files = sorted(p for p in folder.glob(pattern) if p.is_file() and p.stat().st_size)
    # Packing was interrupted where a file is there in both forms: the plain one is read, once.
    return [p for p in files if p.suffix not in (".gz", ".xz") or not p.with_suffix("").exists()]


def rank_of(file: Path) -> int | None:
    """The rank a file name tells (`rank3.sqlite`, `trace_rank-0.json`, `report.rank_12.nsys-rep`), or the run of a rank."""
    found = re.search(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", file.name, re.IGNORECASE)
    return int(found[1]) if found else rank_of_folder(file)


def _noted_ranks(file: Path) -> dict[int, int]:
    """What the processes of a timeline noted of themselves: process id and rank."""
    from llm_perf_opt.inject.log import read_log

    return read_log(file.parent.with_name("annotate.jsonl")).ranks if file.parent.name == "nsys" else {}


def source_of(file: Path) -> str:
    """What a report calls a recording: its file name, and of a job the rank, too."""
    rank = rank_of_folder(file)
    return file.name if rank is None else f"rank-{rank}/{file.name}"


def ran_on_cpu(run: Path) -> str:
    """The CPU that stage 1 of a run directory says its model ran on; empty where it was a GPU, or nobody says."""
    from llm_perf_opt.regions.names import visible

    metrics = _small_json(run / "torch_profiler" / "metrics.json", _LARGEST_METRICS) if run.is_dir() else None
    device = metrics.get("device") if isinstance(metrics, dict) else None
    name = device.get("name") if isinstance(device, dict) else None
    return visible(name, 80) if isinstance(name, str) and name.startswith("CPU") else ""


_LARGEST_METRICS = 20_000_000  # every operator of a model is in it
_LARGEST_TEXT = 200_000  # of a manifest or a configuration: more is no text for people
_RUN_FACTS = (
    "command",
    "workload",
    "started_at",
    "finished_at",
    "state",
    "tools",
    "gpus_before",
    "gpus_after",
    "settings",
)


_OF_ALL_RANKS = ("command", "workload", "settings")


def run_facts(path: Path) -> dict[str, Any]:
    """What a run directory says about how it came about; empty where it is none."""
    if is_job(path):  # one command started the ranks: the first that tells
        told = next(filter(None, map(run_facts, rank_folders(path).values())), {})
        return {name: told[name] for name in _OF_ALL_RANKS if name in told}
    manifest = _small_json(path / "manifest.json") if path.is_dir() else None
    if not isinstance(manifest, dict):
        return {}
    facts = {name: manifest[name] for name in _RUN_FACTS if name in manifest}
    steps = manifest.get("steps")
    kept = ("name", "argv", "status", "exit_code", "seconds")
    shows = manifest.get("shows_command") is True
    workload = facts["workload"] = _cleaned(manifest.get("workload"), [], shows)
    facts["command"] = _cleaned(manifest.get("command"), workload, shows)
    facts["steps"] = [
        {name: _cleaned(step[name], [], True) if name == "argv" else step[name] for name in kept if name in step}
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, dict)
    ]
    metrics = _small_json(path / "torch_profiler" / "metrics.json", _LARGEST_METRICS)
    if isinstance(metrics, dict) and isinstance(metrics.get("inputs_run"), str):
        facts["inputs"] = metrics["inputs_run"]
    if lines := _small_text(path / "config.yaml").splitlines():
        facts["configuration"] = "\n".join(map(_without_secret, lines))
    return facts


def _cleaned(words: Any, program: list[str], show: bool) -> list[str]:
    """A command line of a manifest, which another version or anybody may have written."""
    from llm_perf_opt.rundir.command_lines import clean_argv, clean_typed

    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []
    return clean_typed(words, program, show=show) if program else clean_argv(words, show=show)


def _without_secret(line: str) -> str:
    """A line of YAML; what looks like a secret is not repeated, whoever wrote it there."""
    from llm_perf_opt.rundir.secrets import REMOVED, is_secret

    name, colon, value = line.partition(":")
    return f"{name}: {REMOVED}" if colon and value.strip() and is_secret(name.strip(" -'\""), value) else line


def _small_text(path: Path, largest: int = _LARGEST_TEXT) -> str:
    try:
        return read_text(path, largest, errors="replace")
    except (OSError, ValueError):
        return ""


def _small_json(path: Path, largest: int = _LARGEST_TEXT) -> object:
    try:
        found: object = parse_json(_small_text(path, largest) or "null")
    except ValueError:
        return None
    return found
