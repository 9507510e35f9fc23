"""Renews requirements/bundle-*.txt: the exact files that `make bundle` takes from the package index, with SHA-256.

    python tools/lock_bundle.py            resolves anew and writes the locks
    python tools/lock_bundle.py --check    only says whether the locks still fit pyproject.toml (no network)

A lock names one file a package, the one for its target. What lies on the index under the same name tomorrow is
refused by pip if it is not the same file. `make audit` asks for known vulnerabilities of what is locked.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

sys.path.insert(0, str(Path(__file__).parent))
from bundle import PROJECT, ROOT, SOURCE_ONLY, TARGETS, BundleError, Target, lock_file, pip

HEADER = """\
# The dependencies of llm-perf-opt for {target}, each with the SHA-256 of the one file that is taken.
# Made by tools/lock_bundle.py (make lock); not to be edited by hand.
"""


def line_of(file: Path) -> str:
    """A requirement that only this very file meets."""
    if file.suffix == ".whl":
        name, version, *_ = parse_wheel_filename(file.name)
    else:
        name, version = parse_sdist_filename(file.name)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def resolve(target: Target) -> str:
    """The text of a lock, from what the index has today."""
    with tempfile.TemporaryDirectory(prefix="llm-perf-lock-") as name:
        folder, sources = Path(name) / "wheels", Path(name) / "sources"
        pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), *SOURCE_ONLY)
        pip("download", "--quiet", "--no-deps", "--no-binary=:all:", "--dest", str(sources), *SOURCE_ONLY)
        (project,) = folder.glob(f"{PROJECT.replace('-', '_')}-*.whl")
        pip(
            "download",
            "--quiet",
            "--dest",
            str(folder),
            "--find-links",
            str(folder),
            *target.options,
            f"{project}[ncu]",
        )
        built = {canonicalize_name(Requirement(text).name) for text in SOURCE_ONLY} | {PROJECT}
        wheels = [file for file in folder.glob("*.whl") if parse_wheel_filename(file.name)[0] not in built]
        lines = sorted(line_of(file) for file in (*wheels, *sources.iterdir()))
    return HEADER.format(target=target.name) + "".join(f"{line}\n" for line in lines)


def outdated(lock: str, dependencies: Iterable[str], target: Target) -> list[str]:
    """Dependencies of the project that a lock does not meet."""
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", lock, re.MULTILINE))
    lacking = []
    for text in dependencies:
        needed = Requirement(text)
        if needed.marker and not needed.marker.evaluate(target.environment):
            continue
        version = locked.get(canonicalize_name(needed.name))
        if version is None or not needed.specifier.contains(version, prereleases=True):
            lacking.append(text)
    return lacking


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies = [*project["dependencies"], *project["optional-dependencies"]["ncu"]]
    for target in TARGETS:
        file = lock_file(target)
        if not words:
            try:
                text = resolve(target)
            except BundleError as error:
                print(f"lock: {error}", file=sys.stderr)
                return 1
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: {len(text.splitlines()) - 2} packages")
        if lacking := outdated(file.read_text(encoding="utf-8"), dependencies, target):
            print(f"{file.name} does not meet {', '.join(lacking)}. Renew it: make lock", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
