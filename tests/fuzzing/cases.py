"""One kind of case for every reader: how an input is made from real recordings, and how it is given to the program."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from fuzzing import hostile, mutate
from fuzzing.material import REPORTS, SMALL_TIMELINES, Made, Place, Run, content, counters, tables, timeline, write
from fuzzing.mutate import Dice


@cache
def _trace() -> Any:
    return json.loads(content("kineto-*.json.gz"))


@cache
def small_trace() -> dict[str, Any]:
    """A few hundred events of the real trace, of all kinds: reading the whole takes ten times as long."""
    whole = _trace()
    events = whole["traceEvents"]
    kinds: dict[Any, int] = {}
    kept = []
    for event in events:
        kind = (event.get("ph"), event.get("cat"))
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= 60:
            kept.append(event)
    return {**whole, "traceEvents": kept}


def _report(place: Place, *inputs: Path, dice: Dice) -> list[str]:
    # Pages and pictures take longer than the reading: they get a part of the cases.
    formats = "json,md,csv,html" if dice.random() < 0.08 else "json"
    verb = dice.random()
    if verb < 0.05:
        return ["ranges", *map(str, inputs)]
    if verb < 0.08:
        return ["export", *map(str, inputs), "--csv", str(place.out / "csv"), "--perfetto", str(place.out / "t.json")]
    chosen = ["--attribution", dice.choice(["thread", "process"])] if dice.random() < 0.1 else []
    # What is shown on a terminal takes as long as the report: it gets a part of the cases too.
    chosen += ["--json"] if dice.random() < 0.8 else []
    return ["report", *map(str, inputs), "--out", str(place.out), "--format", formats, *chosen]


# -- recordings ------------------------------------------------------------------------------------


def nsys_bytes(dice: Dice, place: Place) -> Made:
    data = timeline(dice.choice(SMALL_TIMELINES))
    other = timeline(dice.choice(SMALL_TIMELINES))
    return _report(place, write(place.given / "x.sqlite", mutate.damaged(dice, data, other)), dice=dice)


def nsys_pages(dice: Dice, place: Place) -> Made:
    data = mutate.damaged_pages(dice, timeline(dice.choice(SMALL_TIMELINES)))
    return _report(place, write(place.given / "x.sqlite", data), dice=dice)


def nsys_schema(dice: Dice, place: Place) -> Made:
    path = write(place.given / "x.sqlite", timeline(dice.choice(SMALL_TIMELINES)))
    mutate.damaged_schema(dice, path)
    if dice.random() < 0.03:
        (place.given / "x.sqlite-wal").write_bytes(dice.randbytes(5000))
    return _report(place, path, dice=dice)


def page_decoder(dice: Dice, place: Place) -> Made:
    """Our decoder and SQLite on the same damaged file: equal columns, or a refusal by either."""
    data = timeline(dice.choice(SMALL_TIMELINES))
    data = mutate.damaged_pages(dice, data) if dice.random() < 0.7 else mutate.damaged(dice, data)
    path = write(place.given / "x.sqlite", data)

    def compare() -> None:
        import numpy as np

        from llm_perf_opt.readers import sqlite_columns
        from llm_perf_opt.readers.sqlite_columns import Column, read_columns
        from llm_perf_opt.readers.sqlite_open import sqlite_uri

        wanted = {"start": Column("start"), "end": Column("end", -1), "rowid": Column(sqlite_columns.ROWID)}
        try:
            with closing(sqlite3.connect(sqlite_uri(path), uri=True)) as db:
                db.text_factory = bytes
                for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
                    try:
                        ours = read_columns(path, db, table, wanted)
                    except sqlite3.DatabaseError:
                        continue
                    try:
                        theirs = sqlite_columns._read_slowly(db, table, wanted, None)
                        sound = db.execute("PRAGMA quick_check(1)").fetchone() == (b"ok",)
                    except (sqlite3.DatabaseError, UnicodeDecodeError):
                        continue  # SQLite notices damage that a look at the leaves cannot
                    # On a damaged tree the two may walk differently; on a sound one they may not.
                    if sound:
                        assert all(np.array_equal(ours[key], theirs[key]) for key in wanted), f"{table} differs"
        except sqlite3.DatabaseError:
            return

    return compare


def ncu_rep(dice: Dice, place: Place) -> Made:
    data = counters(dice.choice(REPORTS[:5] if dice.random() < 0.9 else REPORTS))
    other = counters(dice.choice(REPORTS[:4]))
    path = write(place.given / "x.ncu-rep", mutate.damaged(dice, data, other))
    return _report(place, path, dice=dice)


def ncu_rep_inside(dice: Dice, place: Place) -> Made:
    """The blocks stay whole, so that the damage reaches NVIDIA's reader."""
    from llm_perf_opt.readers.ncu_container import block_spans

    data = bytearray(counters(dice.choice(REPORTS[:4])))
    spans = [span for _, results in block_spans(bytes(data)) for span in results if span[1] > span[0]]
    for _ in range(dice.choice([1, 1, 3, 10])):
        start, end = dice.choice(spans)
        part = dice.choice(mutate.OF_EQUAL_LENGTH)(dice, bytes(data[start:end]))
        data[start:end] = part[: end - start].ljust(end - start, b"\x00")
    return _report(place, write(place.given / "x.ncu-rep", bytes(data)), dice=dice)


def ncu_csv(dice: Dice, place: Place) -> Made:
    data = dice.choice(tables()).read_bytes()
    data = mutate.damaged_lines(dice, data) if dice.random() < 0.7 else mutate.damaged(dice, data)
    return _report(place, write(place.given / "x.csv", data), dice=dice)


def kineto_events(dice: Dice, place: Place) -> Made:
    text = mutate.damaged_json(dice, small_trace())
    return _report(place, write(place.given / "x.json", text.encode("utf-8", "surrogatepass")), dice=dice)


def kineto_bytes(dice: Dice, place: Place) -> Made:
    data = json.dumps(small_trace()).encode() if dice.random() < 0.9 else content("kineto-*.json.gz")
    return _report(place, write(place.given / "x.json", mutate.damaged(dice, data)), dice=dice)


def joined(dice: Dice, place: Place) -> Made:
    """A timeline and counters together, one of them damaged."""
    recorded, results = timeline(dice.choice(("names", "threads"))), counters("threads-scope-thread")
    path = write(place.given / "x.sqlite", recorded)
    if dice.random() < 0.6:
        _add_traffic(path, dice)
    if dice.random() < 0.7:
        mutate.damaged_schema(dice, path)
    else:
        results = mutate.damaged(dice, results)
    return _report(place, path, write(place.given / "x.ncu-rep", results), dice=dice)


def _add_traffic(path: Path, dice: Dice) -> None:
    """Samples of the whole GPU, as a recording of a profile has them, in the time of the kernels; now and then odd ones."""
    from llm_perf_opt.regions.traffic import COUNTERS

    kind = 281479271677952  # as nsys has it for its first GPU
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)")
        db.execute("CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)")
        named = [(kind, number, f"{name} [byte]") for number, name in enumerate(COUNTERS)]
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?)", named)
        ((first, last),) = db.execute("SELECT MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL")
        step = max((last - first) // 300, 1)
        odd = dice.choice([0, 0, 0, -1, 2**62, None, "x"])
        rows = [
            (moment, kind, number, odd if dice.random() < 0.01 else dice.randrange(10**9))
            for moment in range(first - 5 * step, last + 5 * step, step)
            for number in range(len(COUNTERS))
        ]
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", rows)
        db.commit()


# -- packed ----------------------------------------------------------------------------------------


def packed(dice: Dice, place: Place) -> Made:
    name = dice.choice(["x.sqlite", "x.json", "x.csv", "x.ncu-rep"])
    what = {
        "x.sqlite": lambda: timeline("threads"),
        "x.json": lambda: json.dumps(small_trace()).encode(),
        "x.csv": lambda: tables()[0].read_bytes(),
        "x.ncu-rep": lambda: counters("threads-scope-thread"),
    }[name]()
    ending = dice.choice([".gz", ".xz"])
    data = gzip.compress(what, 1) if ending == ".gz" else lzma.compress(what, preset=0)
    if dice.random() < 0.3:
        data = data + dice.choice([data, b"\x00" * 100, dice.randbytes(50)])
    return _report(place, write(place.given / f"{name}{ending}", mutate.damaged(dice, data)), dice=dice)


@cache
def _bomb(kind: str, head: bytes, megabytes: int) -> bytes:
    """A small file that unpacks to a large one."""
    if kind == "gz":
        out = zlib.compressobj(9, zlib.DEFLATED, 31)
        parts = [out.compress(head)] + [out.compress(bytes(1 << 20)) for _ in range(megabytes)] + [out.flush()]
        return b"".join(parts)
    pack = lzma.LZMACompressor(preset=0)
    parts = [pack.compress(head)] + [pack.compress(b" " * (1 << 20)) for _ in range(megabytes)] + [pack.flush()]
    return b"".join(parts)


def bomb(dice: Dice, place: Place) -> Made:
    head = dice.choice([b"SQLite format 3\x00", b"NVR\x00", b'{"traceEvents": [', b'"ID","Process ID"\n', b"[" * 100])
    kind = dice.choice(["gz", "xz"])
    data = _bomb(kind, head, dice.choice([70, 200, 600]))
    return _report(place, write(place.given / f"x.{kind}", data), dice=dice)


# -- run directories -------------------------------------------------------------------------------

MANIFEST: dict[str, Any] = {
    "llm_perf_opt": "0.1.0",
    "started_at": "2026-01-01T00:00:00+00:00",
    "command": ["python", "train.py"],
    "state": "running",
    "finished_at": None,
    "tools": {"nsys": "2025.3.1", "ncu": "2025.3.1"},
    "gpus_before": [{"name": "NVIDIA H200", "clocks.sm": "1980 MHz"}],
    "gpus_after": [],
    "settings": {"pipeline": {"nsys": {"enable": True}}},
    "selection": {"include": ["step*"], "exclude": [], "kernel_include": [], "kernel_exclude": []},
    "steps": [
        {
            "name": "nsys",
            "argv": ["nsys", "profile"],
            "status": "captured",
            "exit_code": 0,
            "seconds": 12.5,
            "diagnostics": [{"code": "X", "severity": "warning", "message": "m", "fix": "f"}],
        }
    ],
    "diagnostics": [],
}
STATIC = {
    "stages": [{"name": "prefill", "repeats": 1, "formula": {"flops_needed": 1e12}, "count": {"matrix_flops": 5}}]
}
_ODD_FILES = ("manifest.json", "config.yaml", "static_analysis/static_compute.json", ".llm-perf-files", "report.json")
_ODD_FILES += ("nsys/run.sqlite", "ncu/x.ncu-rep", "torch_profiler/trace.json", "ncu/raw.csv", "regions", "ncu/regions")
_ODD_FILES += ("pictures", "kernels.csv", "ncu", "nsys")


def run_directory(dice: Dice, place: Place) -> Made:
    """A run whose files are damaged, or are links, pipes, devices and folders. Its report is written inside."""
    run = place.out / "run"
    write(run / "nsys" / "run.sqlite", timeline("threads"))
    write(run / "manifest.json", mutate.damaged_json(dice, MANIFEST).encode("utf-8", "surrogatepass"))
    write(run / "static_analysis" / "static_compute.json", mutate.damaged_json(dice, STATIC).encode("utf-8", "replace"))
    write(
        run / "env.json", mutate.damaged_json(dice, {"HOME": "/h", "TOKEN": "t", "N": "1"}).encode("utf-8", "replace")
    )
    write(run / "config.yaml", mutate.damaged(dice, b"device: cuda:0\nhf_token: abc\nmodel:\n  name: x\n" * 20))
    listed = ["report.md", "nsys/run.sqlite", "regions/a/kernels.csv", "../../given/precious", "/etc/hostname"]
    listed += ["ncu/regions/precious", "regions/precious", "x\x00y", "manifest.json", "pictures/precious"]
    write(run / ".llm-perf-files", "\n".join(dice.sample(listed, 6)).encode())
    write(place.given / "precious", b"not to be touched")
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        _odd_file(dice, run / dice.choice(_ODD_FILES), place)
    if dice.random() < 0.05:
        for number in range(2000):
            (run / f"file-{number}").touch()
    formats = dice.choice(["json", "md,csv", "json,md,csv,html"])
    verb = dice.random()
    if verb < 0.15:
        return ["scrub", str(run), "--out", str(place.out / "scrubbed")]
    if verb < 0.25:
        return _loading(run)
    return ["report", str(run), "--format", formats]


def _odd_file(dice: Dice, path: Path, place: Place) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # a pipe too: whoever writes to one would hang
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # the folder it would be in is odd already
    what = dice.choice(["link", "link", "loop", "pipe", "device", "folder", "empty", "noise", "dangling", "secret"])
    if what == "link":
        path.symlink_to(place.given)
    elif what == "secret":
        path.symlink_to(place.given / "precious")
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "dangling":
        path.symlink_to(place.given / "nothing")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to(dice.choice(["/dev/zero", "/dev/null", "/dev/stdin"]))
    elif what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"" if what == "empty" else dice.randbytes(500))


def no_file(dice: Dice, place: Place) -> Made:
    """Inputs that are no regular files, or of no known kind."""
    path = place.given / dice.choice(["x.sqlite", "x.ncu-rep", "x.json", "x.csv", "x", "x.nsys-rep", "-x", "x\ny"])
    place.given.mkdir(parents=True, exist_ok=True)
    _odd_file(dice, path, place)
    return ["report", "--out", str(place.out), "--", str(path)]


# -- small JSON and YAML ---------------------------------------------------------------------------


def _loading(path: Path) -> Run:
    def load() -> None:
        import llm_perf_opt

        found = llm_perf_opt.load(path)
        for table in (found.regions, found.kernels, found.metrics):
            len(table)
        for shown in (found, found.tree, found.roofline):
            shown._repr_html_()
            shown._repr_markdown_()

    return load


@cache
def _finished() -> Any:
    """A report with everything in it."""
    from llm_perf_opt.analysis.build import ReportOptions, build_report
    from llm_perf_opt.readers.open import read_recording
    from llm_perf_opt.report.json_report import as_json

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        recorded = write(Path(folder) / "x.sqlite", timeline("threads"))
        results = write(Path(folder) / "x.ncu-rep", counters("threads-scope-thread"))
        recordings = [read_recording(recorded, launch_config=True), read_recording(results)]
    return as_json(build_report(recordings, ReportOptions()))


def finished_report(dice: Dice, place: Place) -> Made:
    text = mutate.damaged_json(dice, _finished()).encode("utf-8", "surrogatepass")
    if dice.random() < 0.2:
        text = mutate.damaged(dice, text)
    return _loading(write(place.given / "report.json", text).parent)


CALIBRATION = {
    "schema": 1,
    "calibrations": [
        {
            "gpu": "NVIDIA H200",
            "uuid": "GPU-1",
            "measured_at": "2026-01-01",
            "bandwidth": {"value": 4.2e12, "unit": "B/s"},
            "peaks": {"tensor_bf16": {"value": 7.5e14, "unit": "FLOP/s"}},
        }
    ],
}


def calibration(dice: Dice, place: Place) -> Made:
    path = write(place.given / "c.json", mutate.damaged_json(dice, CALIBRATION).encode("utf-8", "surrogatepass"))
    if dice.random() < 0.1:
        _odd_file(dice, path, place)
    recorded = write(place.given / "x.sqlite", timeline("threads"))
    return ["report", str(recorded), "--out", str(place.out), "--format", "json", "--calibration", str(path)]


COSTS = {
    "format": 1,
    "machines": {"m": [{"seconds": 10.0, "program_s": 5.0, "launches": 100, "passes": 3, "time_only": False}]},
}


def costs(dice: Dice, place: Place) -> Made:
    path = write(place.given / "costs.json", mutate.damaged_json(dice, COSTS).encode("utf-8", "surrogatepass"))
    if dice.random() < 0.1:
        _odd_file(dice, path, place)

    def learn() -> None:
        from llm_perf_opt.planning.costs import known_costs

        known_costs(path, "m")

    return learn


def formula(dice: Dice, place: Place) -> Made:
    """`static_compute.json` and the log of the annotation: read beside the recordings of a run."""
    static = write(place.given / "s.json", mutate.damaged_json(dice, STATIC).encode("utf-8", "surrogatepass"))
    notes = [{"event": "torch"}, {"event": "trouble", "message": "m"}, {"event": "end", "stages": {"a": 1}}]
    lines = "\n".join(mutate.damaged_json(dice, note) for note in notes)
    log = write(place.given / "log", lines.encode("utf-8", "surrogatepass"))

    def read() -> None:
        from llm_perf_opt.inject.log import read_log
        from llm_perf_opt.readers.stage_files import read_formula

        assert read_log(log).message is not None
        try:
            read_formula(static)
        except (OSError, ValueError):
            return  # what the caller expects, and tells

    return read


INPUTS = (
    b"inputs:\n- prompt: Say hello.\n  id: one\n- path: page.png\n- just a text\n- {prompt: x, extra: [1, {a: b}]}\n"
)


def input_list(dice: Dice, place: Place) -> Made:
    data = mutate.damaged(dice, INPUTS)
    if dice.random() < 0.1:
        data = dice.choice(
            [b"[" * 5000, b"- &a [*a]\n", b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", b"!!python/name:os.abort\n"]
        )
    path = write(place.given / "inputs.yaml", data)
    write(place.given / "page.png", b"x")

    def read() -> None:
        from llm_perf_opt.workloads.datasets import _from_manifest

        _from_manifest(path)

    return read


def overrides(dice: Dice, place: Place) -> Made:
    from llm_perf_opt.options import KEYS

    def word() -> str:
        key = dice.choice(list(KEYS))
        value = str(dice.choice([*mutate.TEXTS, *mutate.NUMBERS, "[a,b]", "{a: 1}", "${x}", "true", "null", "all"]))
        text = dice.choice(["", "+", "++", "~"]) + key + dice.choice(["=", "=", "=", "", "@"]) + value
        return (
            mutate.flip(dice, text.encode("utf-8", "replace")).decode("utf-8", "replace")
            if dice.random() < 0.3
            else text
        )

    words = [word() for _ in range(dice.choice([1, 2, 3]))]

    def normalise() -> None:
        from llm_perf_opt.runners.overrides import normalised

        normalised(words)

    return normalise


def scrub(dice: Dice, place: Place) -> Made:
    """The cleaner has parsers of its own, and must not leave a half-clean copy."""
    if dice.random() < 0.5:
        path = write(place.given / "x.sqlite", timeline(dice.choice(SMALL_TIMELINES)))
        if dice.random() < 0.5:
            mutate.damaged_schema(dice, path)
        else:
            path.write_bytes(mutate.damaged_pages(dice, path.read_bytes()))
    else:
        path = write(place.given / "x.ncu-rep", mutate.damaged(dice, counters(dice.choice(REPORTS[:4]))))
    return ["scrub", str(path), "--out", str(place.out / "scrubbed")]


def _many_names(dice: Dice, place: Place) -> Made:
    """Ranges and kernels with every odd name, nested in every odd way."""
    names = [*mutate.TEXTS, *(str(n) for n in mutate.NUMBERS)]
    path = write(place.given / "x.sqlite", timeline("threads"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        rows = db.execute("SELECT rowid, start, end FROM NVTX_EVENTS WHERE eventType IN (59, 60)").fetchall()
        low, high = min(r[1] for r in rows), max(r[2] or r[1] for r in rows)
        for row, _, _ in rows:
            name = dice.choice(names).encode("utf-8", "replace").decode()
            start = dice.randrange(low, high)
            end = dice.choice([None, start, dice.randrange(start, high + 1)])
            db.execute(
                "UPDATE NVTX_EVENTS SET text = ?, textId = NULL, start = ?, end = ? WHERE rowid = ?",
                (name, start, end, row),
            )
        db.execute("UPDATE StringIds SET value = ? WHERE id % ? = 0", (dice.choice(names[:3]), dice.choice([1, 2, 3])))
    return _report(place, path, dice=dice)


def structure(dice: Dice, place: Place) -> Made:
    """Small files that name a different process, GPU, domain or range for every row, or nest all of them."""
    path = write(place.given / "x.sqlite", timeline(dice.choice(["decoder-8layers", "train", "graph_node"])))
    kernels, ranges = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
    deeds = [
        f"UPDATE {kernels} SET deviceId = rowid % {dice.choice([3, 100, 10**6])}",
        f"UPDATE {kernels} SET globalPid = (rowid % {dice.choice([3, 300, 10**6])}) << 24",
        f"UPDATE {kernels} SET graphNodeId = rowid",
        f"UPDATE {kernels} SET correlationId = {dice.choice(['1', 'rowid', '-rowid', 'NULL'])}",
        f"UPDATE {kernels} SET demangledName = rowid",
        f"UPDATE {ranges} SET globalTid = globalTid + rowid",
        f"UPDATE {ranges} SET globalTid = rowid << 24",
        f"UPDATE {ranges} SET domainId = rowid % {dice.choice([3, 200, 10**6])}",
        f"UPDATE {ranges} SET text = 'range ' || rowid",
        f"UPDATE {ranges} SET text = 'op, seq = ' || rowid, eventType = 60",
        f"UPDATE {ranges} SET eventType = 60",
        # Each inside the one before; each overlapping the one before; none ever closed.
        f"UPDATE {ranges} SET start = rowid, end = 4000000000 - rowid WHERE eventType IN (59, 60)",
        f"UPDATE {ranges} SET start = rowid * 1000, end = 4000000000 + rowid WHERE eventType IN (59, 60)",
        f"UPDATE {ranges} SET end = NULL",
        f"UPDATE {ranges} SET text = printf('%.*c', {dice.choice([1000, 100000])}, 'x') || rowid WHERE rowid % 97 = 0",
        f"INSERT INTO {ranges} SELECT * FROM {ranges}",
        f"INSERT INTO {kernels} SELECT * FROM {kernels}",
        "UPDATE CUDA_GRAPH_NODE_EVENTS SET graphNodeId = rowid, originalGraphNodeId = rowid - 1",
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for deed in dice.sample(deeds, dice.choice([1, 2, 3, 5])):
            try:
                db.execute(deed)
            except sqlite3.Error:
                continue
    return _report(place, path, dice=dice)


# What is made, and how often of ten thousand.
KINDS: dict[str, tuple[Callable[[Dice, Place], Made], int]] = {
    "nsys SQLite, bytes": (nsys_bytes, 1000),
    "nsys SQLite, pages": (nsys_pages, 1000),
    "nsys SQLite, schema and values": (nsys_schema, 1000),
    "nsys SQLite, names and nesting": (_many_names, 200),
    "nsys SQLite, structure": (structure, 120),
    "SQLite page decoder against SQLite": (page_decoder, 1000),
    "ncu report, bytes": (ncu_rep, 250),
    "ncu report, inside of blocks": (ncu_rep_inside, 450),
    "ncu CSV": (ncu_csv, 900),
    "PyTorch trace, events": (kineto_events, 600),
    "PyTorch trace, bytes": (kineto_bytes, 400),
    "timeline with counters": (joined, 300),
    "packed files": (packed, 300),
    "packed bombs": (bomb, 20),
    "run directory": (run_directory, 400),
    "no regular file": (no_file, 100),
    "report.json": (finished_report, 800),
    "calibration": (calibration, 150),
    "costs of the planner": (costs, 500),
    "FLOPs by formula, log of the annotation": (formula, 400),
    "list of inputs": (input_list, 300),
    "configuration overrides": (overrides, 400),
    "scrub": (scrub, 100),
    "hostile SQLite": (hostile.schema, 200),
    "journals and logs beside SQLite": (hostile.beside, 60),
    "work out of proportion": (hostile.disproportion, 160),
}


def make(kind: str, number: int, seed: int, root: Path) -> Made:
    """The case with this number; always the same."""
    dice = random.Random(f"{seed} {kind} {number}")
    place = Place(root)
    place.given.mkdir(parents=True, exist_ok=True)
    place.out.mkdir(parents=True, exist_ok=True)
    return KINDS[kind][0](dice, place)
