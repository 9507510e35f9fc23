"""Builds dist/bundle: all that is needed to install llm-perf on a GPU machine that reaches no network.

    dist/bundle/wheels/*.whl   this project and its run-time dependencies, for CPython 3.12 on Linux x86_64
    dist/bundle/install.sh     installs them; needs nothing but Python 3.12
    dist/bundle/wheels.txt     what it installs: each wheel with its hash, and no other file
    dist/bundle/SHA256SUMS     of all of the above
    dist/llm-perf-opt-bundle-<version>-cp312-linux-x86_64.tar

`python tools/bundle.py 3.11` builds it for Python 3.11. What is taken from the package index is locked with hashes
in requirements/ (see lock_bundle.py).

PyTorch stays out: the machine has the one its GPU needs. So does NVIDIA's ncu-report, which is under NVIDIA's
licence, unless WITH_NCU_REPORT=1 says that whoever builds the bundle has read that and may pass it on. The build fails when the bundle grows over
LIMIT_BYTES, or when a wheel that another one requires is missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
BUNDLE = DIST / "bundle"
LIMIT_BYTES = 60_000_000
PROJECT = "llm-perf-opt"
# glibc 2.28 and every older one: pip takes the tags given literally, it does not know that 2.28 runs 2.25.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
)
# Pure Python that its index has no wheel of (Hydra's grammar needs it): built here.
SOURCE_ONLY = ("antlr4-python3-runtime==4.9.3",)
INSTALL_SH = Path(__file__).with_name("install.sh")
# NVIDIA's, and not to be passed on without its licence: only on an explicit word (see docs/licences.md).
NCU_REPORT, NCU_REPORT_WORD, NCU_REPORT_LICENCE = "ncu-report", "WITH_NCU_REPORT", "NCU_REPORT_LICENSE.rst"


@dataclass(frozen=True)
class Target:
    """The machine a bundle is for."""

    python: str  # "3.12"

    @property
    def tag(self) -> str:
        return f"cp{self.python.replace('.', '')}"

    @property
    def name(self) -> str:
        return f"{self.tag}-linux-x86_64"

    @property
    def options(self) -> list[str]:
        """What makes pip choose wheels for it, whatever Python it runs on."""
        return [
            *("--only-binary=:all:", "--implementation", "cp", "--abi", self.tag, "--python-version", self.tag[2:]),
            *(word for platform in PLATFORMS for word in ("--platform", platform)),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """What `;` markers of requirements are evaluated for: this machine, not the one it is built on."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": "",
        }


TARGETS = (Target("3.12"), Target("3.11"))  # the first is what is built unless another is named


def lock_file(target: Target) -> Path:
    return ROOT / "requirements" / f"bundle-{target.name}.txt"


def install_script(target: Target) -> str:
    """`install.sh` for a target."""
    major, minor = target.python.split(".")
    text = INSTALL_SH.read_text(encoding="utf-8").replace("@PYTHON@", target.python)
    return text.replace("@MAJOR@", major).replace("@MINOR@", minor)


class BundleError(Exception):
    """The bundle would not do what it is for."""


def sha256sums(folder: Path) -> str:
    """One line a file, sorted, as `sha256sum -c` reads them from inside the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    )


def wheel_list(folder: Path) -> str:
    """The wheels of a bundle as `pip --require-hashes` reads them, from inside the bundle's folder."""
    return "".join(
        f"wheels/{path.name} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted((folder / "wheels").glob("*.whl"))
    )


def licence_of(wheel: Path) -> str:
    """The text of the licence that a wheel carries."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.search(r"\.dist-info/(?:licenses/)?LICEN[CS]E[^/]*$", name):
                return archive.read(name).decode("utf-8")
    raise BundleError(f"{wheel.name} carries no licence")


def total_size(folder: Path) -> int:
    """Bytes of all files below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_size(size: int, limit: int = LIMIT_BYTES) -> None:
    """The bundle travels over slow links and onto small disks: it may not grow unnoticed."""
    if size > limit:
        raise BundleError(f"the bundle has {size / 1e6:.1f} MB, more than the {limit / 1e6:.0f} MB allowed")


def requirements(wheel: Path) -> list[Requirement]:
    """What a wheel says it needs."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        headers = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    return [Requirement(line) for line in headers.get_all("Requires-Dist") or []]


def missing(wheels: Iterable[Path], target: Target = TARGETS[0]) -> list[str]:
    """Requirements that hold on the target and that no wheel of the bundle meets.

    pip evaluates markers for the Python it runs on, so a bundle built with another Python could lack something.
    """
    wheels = list(wheels)
    versions = {}
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        versions[name] = version
    lacking = set()
    for wheel in wheels:
        for requirement in requirements(wheel):
            if requirement.marker and not requirement.marker.evaluate(target.environment):
                continue
            found = versions.get(canonicalize_name(requirement.name))
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                lacking.add(f"{requirement} (for {wheel.name})")
    return sorted(lacking)


def project_version(wheels: Iterable[Path]) -> str:
    """The version of this project's own wheel."""
    for wheel in wheels:
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if name == PROJECT:
            return str(version)
    raise BundleError(f"no wheel of {PROJECT} among the files")


def write_tar(folder: Path, target: Path, prefix: str) -> None:
    """Packs the folder; owner and time of the files are left out, so the same files make the same archive."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        member.mode = 0o755 if member.isdir() or member.name.endswith(".sh") else 0o644
        return member

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            inside = path.relative_to(folder).as_posix()
            name = prefix if inside == "." else f"{prefix}/{inside}"
            archive.add(path, arcname=name, recursive=False, filter=plain)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise BundleError(f"pip {arguments[0]} failed")


def collect_wheels(folder: Path, target: Target, *, with_ncu_report: bool = False) -> None:
    """This project's wheel, built here, and exactly the files its lock names, as the index has them."""
    folder.mkdir(parents=True)
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    lines = [line for line in lock_file(target).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    lines = [line for line in lines if with_ncu_report or not line.startswith(f"{NCU_REPORT}==")]
    with tempfile.TemporaryDirectory(prefix="llm-perf-bundle-") as name:
        # pip takes either wheels or sources: each kind has a list of its own.
        sources, wheels = Path(name) / "sources.txt", Path(name) / "wheels.txt"
        sources.write_text("".join(f"{line}\n" for line in lines if line.split()[0] in SOURCE_ONLY), encoding="utf-8")
        wheels.write_text(
            "".join(f"{line}\n" for line in lines if line.split()[0] not in SOURCE_ONLY), encoding="utf-8"
        )
        locked = ("--quiet", "--no-deps", "--require-hashes")
        pip("wheel", *locked, "--wheel-dir", str(folder), "--requirement", str(sources))
        pip("download", *locked, "--dest", str(folder), *target.options, "--requirement", str(wheels))


def build(target: Target = TARGETS[0], *, with_ncu_report: bool = False) -> Path:
    """Builds the bundle and its archive; returns the archive."""
    shutil.rmtree(BUNDLE, ignore_errors=True)
    collect_wheels(BUNDLE / "wheels", target, with_ncu_report=with_ncu_report)
    wheels = sorted((BUNDLE / "wheels").glob("*.whl"))
    lacking = missing(wheels, target)
    if lacking:
        raise BundleError("wheels are missing (renew the lock with make lock):\n  " + "\n  ".join(lacking))
    script = BUNDLE / "install.sh"
    script.write_text(install_script(target), encoding="utf-8")
    script.chmod(0o755)
    (BUNDLE / "wheels.txt").write_text(wheel_list(BUNDLE), encoding="utf-8")
    if with_ncu_report:
        (nvidias,) = (BUNDLE / "wheels").glob("ncu_report-*.whl")
        licence = licence_of(nvidias)
        (BUNDLE / NCU_REPORT_LICENCE).write_text(licence, encoding="utf-8")
        print(licence)
        print(f"The licence above is that of {nvidias.name}, which this bundle holds: who passes it on is bound by it.")
    (BUNDLE / "SHA256SUMS").write_text(sha256sums(BUNDLE), encoding="utf-8")

    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:7.2f} MB  {wheel.name}")
    size = total_size(BUNDLE)
    print(f"{size / 1e6:7.2f} MB  in all, of {LIMIT_BYTES / 1e6:.0f} MB allowed")
    check_size(size)
    name = f"{PROJECT}-bundle-{project_version(wheels)}"
    archive = DIST / f"{name}-{target.name}.tar"
    write_tar(BUNDLE, archive, name)
    return archive


def main(words: list[str]) -> int:
    target = next((t for t in TARGETS if words in ([], [t.python])), None)
    if target is None:
        print(f"bundle: give one of {', '.join(t.python for t in TARGETS)}, or nothing", file=sys.stderr)
        return 2
    try:
        archive = build(target, with_ncu_report=os.environ.get(NCU_REPORT_WORD) == "1")
    except BundleError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    print(f"dist/bundle and dist/{archive.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
