"""The offline bundle: its checks and checksums, without building one (that needs a package index)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from attrs import define

ROOT = Path(__file__).resolve().parent.parent


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bundle() -> ModuleType:
    return tool("bundle")


@pytest.fixture(scope="module")
def lock(bundle: ModuleType) -> ModuleType:
    return tool("lock_bundle")


def make_wheel(folder: Path, name: str, version: str, *requires: str, build: str = "", says: str = "") -> Path:
    """A wheel that pip installs: one module, which `says` something."""
    path = folder / f"{name}-{version}{build}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}.py", f"SAYS = {says!r}\n")
        archive.writestr(f"{name}-{version}.dist-info/licenses/LICENSE.rst", f"The licence of {name}.\n")
        files = [f"{name}.py,,", *(f"{name}-{version}.dist-info/{n},," for n in ("METADATA", "WHEEL", "RECORD"))]
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "".join(f"{line}\n" for line in files))
    return path


def test_a_bundle_up_to_the_limit_passes(bundle: ModuleType) -> None:
    bundle.check_size(bundle.LIMIT_BYTES)


def test_a_bundle_over_the_limit_is_refused_with_both_sizes(bundle: ModuleType) -> None:
    assert bundle.LIMIT_BYTES == 60_000_000
    with pytest.raises(bundle.BundleError, match=r"61\.0 MB, more than the 60 MB"):
        bundle.check_size(61_000_000)


def test_size_counts_files_at_every_depth(bundle: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").write_bytes(b"x" * 10)
    (tmp_path / "install.sh").write_bytes(b"y" * 5)
    assert bundle.total_size(tmp_path) == 15


def test_checksums_are_sorted_relative_and_leave_themselves_out(bundle: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "b.whl").write_bytes(b"b")
    (tmp_path / "wheels" / "a.whl").write_bytes(b"")
    (tmp_path / "SHA256SUMS").write_text("of an earlier build")
    assert bundle.sha256sums(tmp_path) == (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  wheels/a.whl\n"
        "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  wheels/b.whl\n"
    )


@pytest.mark.process
@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not on this machine")
def test_sha256sum_accepts_the_file_and_finds_damage(bundle: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"as built")
    (tmp_path / "SHA256SUMS").write_text(bundle.sha256sums(tmp_path))
    check = ["sha256sum", "--quiet", "-c", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "a.whl").write_bytes(b"as copied")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode != 0


def test_a_requirement_that_no_wheel_meets_is_named(bundle: ModuleType, tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path, "llm_perf_opt", "0.1.0", "numpy>=1.26", "Rich.Text>=2"),
        make_wheel(tmp_path, "numpy", "1.25.0"),
        make_wheel(tmp_path, "rich_text", "2.0"),
    ]
    assert bundle.missing(wheels) == ["numpy>=1.26 (for llm_perf_opt-0.1.0-py3-none-any.whl)"]


@pytest.mark.parametrize(
    ("marker", "needed"),
    [
        ("python_version >= '3.12'", True),
        ("python_version < '3.12'", False),
        ("platform_machine == 'x86_64' and sys_platform == 'linux'", True),
        ("sys_platform == 'win32'", False),
        ("extra == 'torch'", False),
    ],
)
def test_markers_are_those_of_the_target_machine(bundle: ModuleType, tmp_path: Path, marker: str, needed: bool) -> None:
    wheel = make_wheel(tmp_path, "llm_perf_opt", "0.1.0", f"other; {marker}")
    assert bool(bundle.missing([wheel])) is needed


def test_the_version_is_that_of_the_projects_own_wheel(bundle: ModuleType, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, "attrs", "25.1.0"), make_wheel(tmp_path, "llm_perf_opt", "0.1.0")]
    assert bundle.project_version(wheels) == "0.1.0"
    with pytest.raises(bundle.BundleError, match="no wheel of llm-perf-opt"):
        bundle.project_version(wheels[:1])


def test_the_archive_names_no_user_and_keeps_the_script_executable(bundle: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / "a.whl").write_bytes(b"a")
    (folder / "install.sh").write_text(bundle.install_script(bundle.TARGETS[0]))
    bundle.write_tar(folder, tmp_path / "one.tar", "llm-perf-opt-bundle-0.1.0")
    bundle.write_tar(folder, tmp_path / "two.tar", "llm-perf-opt-bundle-0.1.0")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        members = {member.name: member for member in archive}
    assert sorted(members) == [
        "llm-perf-opt-bundle-0.1.0",
        "llm-perf-opt-bundle-0.1.0/install.sh",
        "llm-perf-opt-bundle-0.1.0/wheels",
        "llm-perf-opt-bundle-0.1.0/wheels/a.whl",
    ]
    assert members["llm-perf-opt-bundle-0.1.0/install.sh"].mode == 0o755
    assert {(member.uid, member.uname, member.mtime) for member in members.values()} == {(0, "", 0)}


@pytest.mark.process
def test_the_installer_refuses_a_python_that_is_not_3_12(bundle: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text(bundle.install_script(bundle.TARGETS[0]))
    (tmp_path / "SHA256SUMS").write_text(bundle.sha256sums(tmp_path))
    pretender = tmp_path / "python3.9"
    pretender.write_text("#!/bin/sh\nexit 1\n")
    pretender.chmod(0o755)
    done = subprocess.run(["sh", str(tmp_path / "install.sh"), str(pretender)], cwd="/", capture_output=True, text=True)
    assert done.returncode == 3
    assert "is not a working Python 3.12" in done.stderr


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="a POSIX shell is needed")
def test_the_installer_is_valid_shell(bundle: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text(bundle.install_script(bundle.TARGETS[0]))
    assert subprocess.run(["sh", "-n", str(tmp_path / "install.sh")]).returncode == 0


def test_every_line_of_a_lock_is_one_file_of_one_version(bundle: ModuleType) -> None:
    for target in bundle.TARGETS:
        lines = bundle.lock_file(target).read_text(encoding="utf-8").splitlines()
        packages = [line for line in lines if not line.startswith("#")]
        assert len(packages) > 10
        for line in packages:
            assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]* --hash=sha256:[0-9a-f]{64}", line), line


def test_the_page_of_licences_names_every_package_as_it_says_itself() -> None:
    """Otherwise: python tools/document_licences.py"""
    licences = tool("document_licences")
    text = licences.PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^(\| \[([a-z0-9-]+)\].*\n)", text, re.MULTILINE))
    assert list(rows.values()) == list(licences.locked())
    looked_at = 0
    for line, package in rows.items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed in licences.locked()[package]:  # another version may say it in other words
            assert licences.row(package) == line
            looked_at += 1
    assert looked_at > 5
    assert "only with `WITH_NCU_REPORT=1`" in next(line for line, name in rows.items() if name == "ncu-report")


def test_the_locks_meet_what_the_project_needs(lock: ModuleType) -> None:
    assert lock.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("needed", "lacking"),
    [
        ("rich>=13", []),
        ("rich>=14", ["rich>=14"]),
        ("Rich", []),
        ("numpy", ["numpy"]),
        ("numpy; sys_platform == 'win32'", []),
        ("rich-text", ["rich-text"]),
    ],
)
def test_a_lock_that_is_out_of_date_is_noticed(
    bundle: ModuleType, lock: ModuleType, needed: str, lacking: list[str]
) -> None:
    text = f"# rich-text==1.0\nrich==13.9.1 --hash=sha256:{'0' * 64}\nnumpy==2.0\n"
    assert lock.outdated(text, [needed], bundle.TARGETS[0]) == lacking


@pytest.mark.process
def test_a_bundle_takes_only_files_with_the_hash_of_its_lock(
    bundle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip itself, on an index of ours: the file it was locked with is taken, another of the same name is not."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = make_wheel(index, "some_library", "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    locked = tmp_path / "lock.txt"
    locked.write_text(f"# comment\nsome-library==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(bundle, "lock_file", lambda _: locked)
    monkeypatch.setattr(bundle, "SOURCE_ONLY", ())
    real = bundle.pip

    def offline(*arguments: str) -> None:
        if arguments[0] == "download":  # the other two build: this project, and sources, of which there are none
            real(*arguments, "--no-index", "--find-links", str(index))

    monkeypatch.setattr(bundle, "pip", offline)
    bundle.collect_wheels(tmp_path / "good", bundle.TARGETS[0])
    assert [p.name for p in (tmp_path / "good").iterdir()] == [wheel.name]
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("some_library/trojan.py", "print('hello')")
    with pytest.raises(bundle.BundleError):
        bundle.collect_wheels(tmp_path / "bad", bundle.TARGETS[0])
    assert not list((tmp_path / "bad").iterdir())


@pytest.fixture
def small_bundle(bundle: ModuleType, tmp_path: Path) -> Path:
    """A bundle of two wheels, with the real installer, for the Python that runs the tests."""
    folder = tmp_path / "bundle"
    (folder / "wheels").mkdir(parents=True)
    make_wheel(folder / "wheels", "llm_perf_opt", "0.1.0", "some-library>=1", says="ours")
    make_wheel(folder / "wheels", "some_library", "1.0", says="ours")
    target = next(t for t in bundle.TARGETS if t.python == f"{sys.version_info[0]}.{sys.version_info[1]}")
    (folder / "install.sh").write_text(bundle.install_script(target))
    (folder / "wheels.txt").write_text(bundle.wheel_list(folder))
    (folder / "SHA256SUMS").write_text(bundle.sha256sums(folder))
    return folder


@define
class Environment:
    """A Python of its own, without a package, to install into; pip is that of the tests."""

    folder: Path
    variables: dict[str, str]

    @staticmethod
    def make(tmp_path: Path) -> Environment:
        pip = pytest.importorskip("pip")
        folder = tmp_path / "environment"
        venv.create(folder, with_pip=False)
        (tmp_path / "with-pip").mkdir()
        (tmp_path / "with-pip" / "pip").symlink_to(Path(pip.__file__).parent)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        return Environment(folder, {**kept, "PYTHONPATH": str(tmp_path / "with-pip")})

    def install(self, bundle: Path) -> subprocess.CompletedProcess[str]:
        argv = ["sh", "install.sh", str(self.folder / "bin" / "python")]
        return subprocess.run(argv, cwd=bundle, env=self.variables, capture_output=True, text=True, timeout=120)

    @property
    def packages(self) -> Path:
        (found,) = (self.folder / "lib").glob("python3.*/site-packages")
        return found

    def installed(self) -> dict[str, str]:
        return {file.stem: file.read_text().split(chr(39))[1] for file in self.packages.glob("*.py")}


@pytest.mark.process
@pytest.mark.slow
def test_nothing_that_is_put_beside_the_wheels_is_installed(small_bundle: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path)
    wheels = small_bundle / "wheels"
    make_wheel(wheels, "llm_perf_opt", "99.0", "another-library", says="theirs")
    make_wheel(wheels, "llm_perf_opt", "0.1.0", build="-9", says="theirs")
    make_wheel(wheels, "some_library", "99.0", says="theirs")
    make_wheel(wheels, "some_library", "1.0", build="-9", says="theirs")
    make_wheel(wheels, "another_library", "1.0", says="theirs")
    for name in ("pip.py", "json.py", "sysconfig.py"):  # where the installer runs
        (small_bundle / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = environment.install(small_bundle)
    assert done.returncode == 0, done.stderr
    assert environment.installed() == {"llm_perf_opt": "ours", "some_library": "ours"}
    assert not (tmp_path / "ran").exists()
    assert "ncu-report is needed" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_a_wheel_with_another_hash_is_refused(bundle: ModuleType, small_bundle: Path, tmp_path: Path) -> None:
    """Also where the checksums were made anew, or there is no sha256sum to look at them: pip looks itself."""
    environment = Environment.make(tmp_path)
    make_wheel(small_bundle / "wheels", "some_library", "1.0", says="theirs")
    damaged = environment.install(small_bundle)
    assert (damaged.returncode, "files of this bundle are damaged" in damaged.stderr) == (1, True)
    (small_bundle / "SHA256SUMS").write_text(bundle.sha256sums(small_bundle))
    refused = environment.install(small_bundle)
    assert refused.returncode == 1
    assert "a wheel does not have the hash of wheels.txt" in refused.stderr
    assert environment.installed() == {}


@pytest.mark.process
@pytest.mark.slow
def test_packages_that_do_stay_and_the_product_is_always_renewed(small_bundle: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path)
    (tmp_path / "there").mkdir()
    for name, version in (("some_library", "1.5"), ("llm_perf_opt", "0.1.0")):
        with zipfile.ZipFile(make_wheel(tmp_path / "there", name, version, says="there before")) as wheel:
            wheel.extractall(environment.packages)
    done = environment.install(small_bundle)
    assert done.returncode == 0, done.stderr
    assert environment.installed() == {"llm_perf_opt": "ours", "some_library": "there before"}


@pytest.mark.parametrize("word", [True, False])
def test_nvidias_reader_is_bundled_only_on_an_explicit_word(
    bundle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: bool
) -> None:
    asked: list[str] = []

    def noted(*arguments: str) -> None:
        if arguments[0] == "download":
            asked.extend(Path(arguments[arguments.index("--requirement") + 1]).read_text().splitlines())

    monkeypatch.setattr(bundle, "pip", noted)
    bundle.collect_wheels(tmp_path / "wheels", bundle.TARGETS[0], with_ncu_report=word)
    assert any(line.startswith("ncu-report==") for line in asked) is word
    assert len(asked) > 10


def test_the_licence_of_what_is_bundled_is_shown(bundle: ModuleType, tmp_path: Path) -> None:
    assert bundle.licence_of(make_wheel(tmp_path, "ncu_report", "2026.1")) == "The licence of ncu_report.\n"
