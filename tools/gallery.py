"""The recordings that the tutorials and the gallery speak of, under their names there, and the pages made from them.

python tools/gallery.py recordings FOLDER   # lay the recordings out: the tutorials' commands run in that folder
python tools/gallery.py pages FOLDER        # build the pages of the gallery; `make docs` does
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from llm_perf_opt.cli.main import main

RECORDINGS = Path(__file__).resolve().parents[1] / "tests" / "recordings"
# Name in the documentation -> file below tests/recordings; `:` names a member of a tar.
FILES = {
    "cold.sqlite.xz": "nsys-2025.3.1-h200-decoder-8layers.sqlite.xz",
    "warm.sqlite.xz": "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz",
    "warm.ncu-rep.xz": "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz",
    "server.sqlite.xz": "serving-2025.3.1-h200-continuous-batching.sqlite.xz",
    "training.sqlite.xz": "lines-2025.3.1-h200-train.sqlite.xz",
    "waits.sqlite.xz": "lines-2025.3.1-h200-waits.sqlite.xz",
    "ocr.sqlite.xz": "profile-2025.3.1-h200-ocr.sqlite.xz",
    "ocr.ncu-rep.xz": "profile-2025.3.1-h200-ocr.ncu-rep.xz",
    "head.json.gz": "fix-rules-h200.tar:gemm_align.before.json.gz",
    "adamw.json.gz": "fix-rules-h200.tar:optimizer_fused.before.json.gz",
    "casts.json.gz": "fix-rules-h200.tar:cast_pingpong.before.json.gz",
    "loss.json.gz": "fix-rules-h200.tar:loss_fp32.before.json.gz",
    "loss-compiled.json.gz": "fix-rules-h200.tar:loss_fp32.after.json.gz",
    "recompiles.json.gz": "fix-rules-h200.tar:compile_again.before.json.gz",
}
# Page -> recordings, and the section that its picture shows.
PAGES = {
    "generate": (("cold.sqlite.xz",), "answer"),
    "roofline": (("warm.sqlite.xz", "warm.ncu-rep.xz"), "roofline"),
    "server": (("server.sqlite.xz",), "timeline"),
    "training": (("training.sqlite.xz",), "lines"),
    "ocr": (("ocr.sqlite.xz", "ocr.ncu-rep.xz"), "regions"),
    "head": (("head.json.gz",), "answer"),
}


def lay_out(name: str, folder: Path) -> Path:
    """One recording under its name in the documentation."""
    source, _, member = FILES[name].partition(":")
    if not member:
        (folder / name).write_bytes((RECORDINGS / source).read_bytes())
        return folder / name
    with tarfile.open(RECORDINGS / source) as archive:
        found = archive.extractfile(member)
        assert found is not None
        (folder / name).write_bytes(found.read())
    return folder / name


def build_pages(folder: Path) -> None:
    """`NAME.html` for each page of the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, (recordings, _) in PAGES.items():
            files = [str(lay_out(recording, Path(place))) for recording in recordings]
            out = Path(place) / name
            main(["report", *files, "--format", "html", "--quiet", "--out", str(out)])
            (folder / f"{name}.html").write_bytes((out / "report.html").read_bytes())


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("recordings", "pages"):
        sys.exit(__doc__)
    target = Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    if sys.argv[1] == "pages":
        build_pages(target)
    else:
        for file in FILES:
            lay_out(file, target)
