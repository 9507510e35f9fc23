"""Makes an nsys SQLite export fit to be a recording of this project: small, and without traces of the host.

    python tools/scrub_sqlite.py run.sqlite tests/recordings/run.sqlite.xz

The copy is that of `llm-perf scrub`; here no path of a home or working folder may be left anywhere, names of ranges
included.
Input and output may be plain, .gz or .xz. If anything is left, nothing is written and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import os
import sys
import tempfile
from pathlib import Path

from llm_perf_opt.readers.open import unpacked
from llm_perf_opt.rundir.scrub import sqlite
from llm_perf_opt.rundir.scrub.private import Private


class NotClean(Exception):
    """The result still holds something it must not."""


FORBIDDEN_BYTES = (b"/work", b"/root", b"/home")


def check_bytes(data: bytes, private: Private) -> None:
    """The last word: what the file's bytes say, whatever the tables say."""
    for forbidden in FORBIDDEN_BYTES:
        at = data.find(forbidden)
        if at >= 0:
            raise NotClean(f"{forbidden.decode()} at byte {at}: {data[max(0, at - 20) : at + 40]!r}")
    if found := private.found_in(data):
        raise NotClean(f"the value of {', '.join(found.values())} is still there")


def scrub(source: Path, target: Path) -> dict[str, int]:
    """Writes the scrubbed copy; returns the row counts of its event tables."""
    private = Private()
    private.learn_environment(os.environ)
    with tempfile.TemporaryDirectory() as folder, unpacked(source, source.name) as plain:
        sqlite.learn(plain, private)
        result = Path(folder) / "result.sqlite"
        cleaned = sqlite.clean(plain, result, private)
        data = result.read_bytes()
    check_bytes(data, private)
    if target.suffix == ".xz":
        data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    elif target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    target.write_bytes(data)
    return cleaned.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="nsys SQLite export (.sqlite, .sqlite.gz, .sqlite.xz)")
    parser.add_argument("target", type=Path, help="where the scrubbed copy goes; the suffix chooses the compression")
    arguments = parser.parse_args()
    try:
        counts = scrub(arguments.source, arguments.target)
    except NotClean as error:
        print(f"scrub_sqlite: NOT CLEAN, nothing written: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.target.name}: {arguments.target.stat().st_size:,} bytes")
    for table, count in counts.items():
        print(f"  {table}: {count:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
