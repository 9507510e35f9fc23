"""What the doctor says, from recorded facts, from changed facts, and from the machine the tests run on.

`machines/` holds what `llm-perf doctor --json` printed on real machines. The profilers are replaced by
programs that say and leave what the real ones did (`transcripts/`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import cattrs
import pytest

from llm_perf_opt.cli.main import main
from llm_perf_opt.doctor import counter_access, gpu, profilers, surroundings, trial
from llm_perf_opt.doctor import gather as gathering
from llm_perf_opt.doctor.checks import Check
from llm_perf_opt.doctor.examine import examine
from llm_perf_opt.doctor.gather import gather
from llm_perf_opt.doctor.known import known
from llm_perf_opt.doctor.machine_facts import (
    Answer,
    ConfigFile,
    Facts,
    Folder,
    Importer,
    LockFile,
    Package,
    Profiler,
    RunningProcess,
    Torch,
    Trial,
)
from llm_perf_opt.doctor.python_packages import find_packages, find_torch
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.help_text import parse_ncu_help
from llm_perf_opt.nsight.messages import RULES
from llm_perf_opt.nsight.tools import Tool
from printed import check_printed

HERE = Path(__file__).parent
MACHINES = sorted((HERE / "machines").glob("*.json"))
TRANSCRIPTS = HERE / "transcripts" / "ncu-nsys-2025.3.1-h200.json"
NCU_HELP = parse_ncu_help((HERE / "transcripts" / "ncu-2025.3.1-help.txt").read_text(encoding="utf-8"))
TIMELINE = HERE / "recordings" / "nsys-2025.3.1-h200-threads.sqlite.xz"
COUNTERS = HERE / "recordings" / "ncu-2025.3.1-h200-decoder-2layers-basic.ncu-rep.xz"

SMI_FIELDS = (
    "index,name,uuid,driver_version,compute_cap,memory.total,memory.used,utilization.gpu,mig.mode.current,compute_mode"
)
H200 = "0, NVIDIA H200, GPU-0, 580.95.05, 9.0, 143771, 0, 0, Disabled, Default"
SYS_ADMIN, PERFMON = 1 << 21, 1 << 38


def machine(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def healthy(*smi_rows: str) -> Facts:
    """A machine on which all is well, for tests that change one thing."""
    facts = Facts(llm_perf_opt="0", python="3.12", system="ubuntu 24.04 debian")
    facts.gpu.query = Answer(["nvidia-smi"], 0, "\n".join(smi_rows or (H200,)) + "\n")
    facts.gpu.query_fields = SMI_FIELDS.split(",")
    facts.gpu.processes = Answer(["nvidia-smi"], 0, "")
    facts.gpu.device_nodes = ["/dev/nvidia0", "/dev/nvidiactl"]
    facts.gpu.driver_params = "EnableMSI: 1\nRmProfilingAdminOnly: 0\n"
    facts.nsys = Profiler("nsys", "/opt/nvidia/nsys", "2025.3.1.0", "PATH")
    facts.ncu = Profiler("ncu", "/opt/nvidia/ncu", "2025.3.1.0", "PATH")
    facts.importer = Importer("/opt/nvidia/QdstrmImporter", Answer(["ldd"], 0, ""))
    facts.packages = [Package(name, "1.0") for name in ("ncu-report", "nvtx", "hydra-core", "transformers")]
    facts.torch = Torch("2.11.0", "13.0", sees_gpu=True)
    facts.folders = [Folder(role, "/x", free_bytes=10**11) for role in ("working folder", "temporary folder")]
    return facts


def tried(facts: Facts, **ncu: Any) -> Facts:
    """The same after both profilers were run; `ncu`: how the trial of ncu ended."""
    facts.trials = [
        Trial("", "captured", 0.4, device="NVIDIA H200"),
        Trial("nsys", "captured", 5.0, kernels=3, ranges=1),
        attrs.evolve(Trial("ncu", "captured", 6.0, kernels=3, counters=dict.fromkeys(trial.METRICS, 1024.0)), **ncu),
    ]
    return facts


def failed(code: str, message: str = "It failed.") -> dict[str, Any]:
    return {
        "status": "nothing",
        "kernels": None,
        "counters": {},
        "diagnoses": [{"code": code, "severity": "error", "message": message, "fix": "Do this."}],
    }


def only(checks: list[Check]) -> Check:
    (check,) = checks
    return check


def by_name(facts: Facts) -> dict[str, Check]:
    return {check.name: check for check in examine(facts).checks}


# -- recorded machines -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", MACHINES, ids=lambda p: p.stem)
def test_a_recorded_machine_gives_the_checks_it_gave(path: Path) -> None:
    recorded = machine(path)
    facts = cattrs.structure(recorded["facts"], Facts)
    found = examine(facts)
    assert [json.loads(json.dumps(attrs.asdict(check))) for check in found.checks] == recorded["checks"]
    assert {"timeline": found.ready.timeline, "counters": found.ready.counters} == recorded["ready"]
    assert found.ready.summary == recorded["summary"]


def test_a_machine_without_gpu_and_tools() -> None:
    facts = cattrs.structure(machine(HERE / "machines" / "debian12-container-bare.json")["facts"], Facts)
    found = by_name(facts)
    assert found["GPU"].state == found["Nsight Systems"].state == found["Nsight Compute"].state == "missing"
    assert "apt-get install" in found["Nsight Compute"].fix_command
    assert "LLM_PERF_NCU" in found["Nsight Compute"].fix_command
    ready = examine(facts).ready
    assert not ready.timeline
    assert not ready.counters
    assert ready.summary.startswith("Profiling does not work here: GPU: no NVIDIA GPU")


def test_a_missing_library_of_the_importer_is_named_with_its_package() -> None:
    facts = cattrs.structure(machine(HERE / "machines" / "debian12-container-tools-without-gpu.json")["facts"], Facts)
    check = only(profilers.check_importer(facts))
    assert check.state == "missing"
    assert "libssh.so" in check.found
    assert check.fix_command == "apt-get install -y libssh-dev"  # root: no sudo
    assert check.blocks == ("timeline",)
    assert "--import-sass" in by_name(facts)["Nsight Compute"].found


# -- all well, and what would work -----------------------------------------------------------------


def test_all_is_well() -> None:
    found = examine(tried(healthy()))
    assert {check.state for check in found.checks} == {"ok"}
    assert found.ready.summary == "Profiling works here: timeline and counters."
    untried = examine(healthy())
    assert untried.ready.timeline
    assert untried.ready.counters
    assert "nothing was run" in untried.ready.summary


def test_the_summary_says_what_would_work_and_why_the_rest_would_not() -> None:
    facts = tried(healthy(), **failed("COUNTER_PERMISSION"))
    ready = examine(facts).ready
    assert (ready.timeline, ready.counters) == (True, False)
    assert ready.summary.startswith("Counters do not work here: permission for counters")
    assert ready.summary.endswith("the timeline does.")
    facts = tried(healthy())
    facts.trials[1] = Trial("nsys", "nothing", problem="no file")
    ready = examine(facts).ready
    assert (ready.timeline, ready.counters) == (False, True)
    assert ready.summary.startswith("The timeline does not work here")


def test_everything_that_is_not_ok_says_why_and_what_to_type() -> None:
    facts = tried(healthy("0, A100, U, 510.1, 6.1, 40960, 39000, 99, Enabled, Exclusive_Process"), **failed("X"))
    facts.gpu.processes = Answer([], 0, "4711, /usr/bin/python3, 30000\n")
    facts.importer.libraries = Answer([], 0, "\tlibdw.so.1 => not found\n\tlibnever.so.9 => not found\n")
    facts.ncu.left_out = ["--import-sass"]
    facts.nsys.refused = ["nsys has no option '--x'."]
    facts.nsys.cannot_sample = "nsys cannot sample any GPU"
    facts.processes = [RunningProcess(7, "nv-hostengine", "root")]
    facts.variables = {variable.name: "/x.so" for variable in known().variables} | {"CUDA_VISIBLE_DEVICES": "-1"}
    facts.config_files = [ConfigFile("config.ncu-cfg", ["-c = 1"])]
    facts.lock_file = LockFile("/tmp/nsight-compute-lock", "alice", writable=False)
    facts.packages = [Package("ncu-report"), Package("nvtx", "1", "ImportError: no"), Package("hydra-core")]
    facts.torch = Torch("2.0", None)
    roles = ("working folder", "temporary folder", "home folder", "shared memory")
    facts.folders = [Folder(role, "/x", writable=False) for role in roles]
    facts.open_files = 256
    facts.secret_variables = ["HF_TOKEN"]
    bad = [check for check in examine(facts).checks if check.state != "ok"]
    assert len(bad) > 20
    assert [check.name for check in bad if not check.why_it_matters or not check.fix_command] == []


def test_whether_nsys_can_sample_the_whole_gpu_is_told_where_there_is_one() -> None:
    facts = healthy()
    facts.nsys.cannot_sample = ""
    assert ("bytes of the whole GPU", "ok") in {(c.name, c.state) for c in examine(facts).checks}
    facts.nsys.cannot_sample = "nsys cannot sample any GPU: Already under profiling"
    (told,) = (check for check in examine(facts).checks if check.name == "bytes of the whole GPU")
    assert (told.state, told.found) == ("warning", facts.nsys.cannot_sample)
    facts.gpu.query = None
    assert "bytes of the whole GPU" not in {check.name for check in examine(facts).checks}


# -- the GPU ---------------------------------------------------------------------------------------


def test_several_gpus_are_counted() -> None:
    facts = healthy(H200, H200.replace("0,", "1,", 1))
    assert only(gpu.check_gpu(facts)).found.startswith("2 × NVIDIA H200, 140 GiB, compute capability 9.0, driver 580")


@pytest.mark.parametrize(
    ("says", "fix"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.",
            "sudo modprobe nvidia",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "sudo reboot"),
        ("Failed to initialize NVML: Unknown Error", "docker run --gpus all"),
    ],
)
def test_a_driver_that_does_not_answer(says: str, fix: str) -> None:
    facts = healthy()
    facts.gpu.query = Answer(["nvidia-smi"], 9, says)
    check = only(gpu.check_gpu(facts))
    assert (check.state, check.blocks) == ("error", ("timeline", "counters"))
    assert says[:40] in check.found
    assert check.fix_command.startswith(fix)


def test_nvidia_smi_without_devices() -> None:
    facts = healthy("No devices were found")
    assert only(gpu.check_gpu(facts)).state == "missing"


def test_no_nvidia_smi_but_a_kernel_that_runs() -> None:
    facts = tried(healthy())
    facts.gpu.query = None
    check = only(gpu.check_gpu(facts))
    assert (check.state, check.blocks) == ("warning", ())
    assert examine(facts).ready.counters


def test_a_gpu_that_no_kernel_runs_on() -> None:
    facts = healthy()
    facts.trials = [Trial("", "nothing", problem="cuInit failed with error 999 (CUDA_ERROR_UNKNOWN)")]
    check = only(gpu.check_kernel(facts))
    assert check.state == "error"
    assert "CUDA_ERROR_UNKNOWN" in check.found
    assert not examine(facts).ready.timeline


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus(value: str) -> None:
    facts = healthy()
    facts.variables = {"CUDA_VISIBLE_DEVICES": value}
    assert only(gpu.check_visible(facts)).fix_command == "unset CUDA_VISIBLE_DEVICES"
    facts.variables = {"CUDA_VISIBLE_DEVICES": "0"}
    assert only(gpu.check_visible(facts)).state == "ok"


def test_others_on_the_gpu() -> None:
    facts = healthy()
    facts.gpu.processes = Answer([], 0, "4711, /usr/bin/python3, 30720\n4712, [Not Found], [N/A]\n")
    check = only(gpu.check_use(facts))
    assert check.state == "warning"
    assert "python3 (process 4711, 30.0 GiB); [Not Found] (process 4712)" in check.found
    # In a container the processes of others cannot be seen; their memory can.
    facts = healthy(H200.replace(" 0, 0, Disabled", " 61440, 87, Disabled"))
    assert "60.0 GiB of its memory and 87 % of its time" in only(gpu.check_use(facts)).found


@pytest.mark.parametrize(
    ("mode", "in_use", "state"),
    [("Default", True, None), ("Exclusive_Process", False, "warning"), ("Exclusive_Process", True, "error"), ("Prohibited", False, "error")],
)  # fmt: skip
def test_compute_modes(mode: str, in_use: bool, state: str | None) -> None:
    facts = healthy(H200.replace("Default", mode))
    if in_use:
        facts.gpu.processes = Answer([], 0, "4711, python3, 100\n")
    check = next((c for c in gpu.check_use(facts) if c.name == "compute mode"), None)
    assert (check.state if check else None) == state


def test_slices_and_old_gpus() -> None:
    facts = healthy(H200.replace("Disabled", "Enabled").replace("9.0", "6.1"))
    assert "MIG" in {check.name for check in gpu.check_use(facts)}
    assert only(gpu.check_capability(facts)).blocks == ("counters",)


def test_what_a_gpu_does_not_tell_is_no_error() -> None:
    facts = healthy("0, Tesla T4, GPU-1, 470.1, [N/A], [N/A], [N/A], [N/A], [N/A], Default")
    assert only(gpu.check_gpu(facts)).found == "Tesla T4, driver 470.1"
    assert gpu.check_capability(facts) == []


# -- permission ------------------------------------------------------------------------------------

ADMIN_ONLY = "RmProfilingAdminOnly: 1\n"


@pytest.mark.parametrize(
    ("params", "root", "capabilities", "container", "state"),
    [
        ("RmProfilingAdminOnly: 0\n", False, 0, "", "ok"),
        (ADMIN_ONLY, True, SYS_ADMIN, "", "ok"),
        (ADMIN_ONLY, False, 0, "", "missing"),
        (ADMIN_ONLY, True, 0, "/.dockerenv", "missing"),  # root of a container without the capability
        (ADMIN_ONLY, False, PERFMON, "", "ok"),  # driver 580
        ("RestrictProfilingToAdminUsers: 1\n", False, 0, "", "missing"),  # older drivers
        (None, False, 0, "", "warning"),
    ],
)
def test_the_rule_of_the_driver(params: str | None, root: bool, capabilities: int, container: str, state: str) -> None:
    facts = healthy()
    facts.gpu.driver_params = params
    facts.privileges = attrs.evolve(facts.privileges, root=root, capabilities=capabilities, container=container)
    check = only(counter_access.check_permission(facts))
    assert check.state == state
    if state == "missing":
        assert check.blocks == ("counters",)
        assert ("--cap-add SYS_ADMIN" in check.fix_command) == bool(container)
        assert "NVreg_RestrictProfilingToAdminUsers=0" in check.fix_command


def test_an_old_driver_does_not_know_the_small_capability() -> None:
    facts = healthy(H200.replace("580.95.05", "550.1"))
    facts.gpu.driver_params = ADMIN_ONLY
    facts.privileges.capabilities = PERFMON
    assert only(counter_access.check_permission(facts)).state == "missing"


def test_what_was_tried_overrules_what_the_settings_say() -> None:
    facts = tried(healthy())
    facts.gpu.driver_params = ADMIN_ONLY
    assert only(counter_access.check_permission(facts)).state == "ok"
    facts = tried(healthy(), **failed("COUNTER_PERMISSION"))
    assert only(counter_access.check_permission(facts)).state == "missing"
    facts.gpu.wsl = True
    assert "Windows" in only(counter_access.check_permission(facts)).fix_command


def test_without_a_gpu_nothing_is_said_about_counters() -> None:
    facts = healthy()
    facts.gpu.query = None
    assert counter_access.check_permission(facts) == []


# -- others in the way -----------------------------------------------------------------------------


def test_dcgm_is_named_with_the_command_that_pauses_it() -> None:
    facts = healthy()
    facts.processes = [RunningProcess(7, "nv-hostengine", "root"), RunningProcess(8, "ncu", "alice")]
    check = only(counter_access.check_others(facts))
    assert check.state == "warning"
    assert "nv-hostengine (DCGM, process 7, root)" in check.found
    assert check.fix_command == "dcgmi profile --pause; kill 8"
    assert only(counter_access.check_others(tried(facts))).state == "ok"  # ncu got its counters all the same
    taken = tried(facts, **failed("DRIVER_RESOURCE_BUSY"))
    assert (only(counter_access.check_others(taken)).state, examine(taken).ready.counters) == ("error", False)


def test_a_tool_outside_the_container_holds_the_counters() -> None:
    check = only(counter_access.check_others(tried(healthy(), **failed("DRIVER_RESOURCE_BUSY"))))
    assert check.state == "error"
    assert "cannot be seen from here" in check.found


def test_injected_libraries() -> None:
    facts = healthy()
    facts.variables = {"NVTX_INJECTION64_PATH": "/other.so", "CUDA_LAUNCH_BLOCKING": "0", "TMPDIR": "/tmp"}
    check = only(counter_access.check_variables(facts))
    assert check.fix_command == "unset NVTX_INJECTION64_PATH"
    assert "/other.so" in check.found


def test_the_lock_file_of_another_user() -> None:
    facts = healthy()
    facts.lock_file = LockFile("/tmp/nsight-compute-lock", "alice", writable=False)
    check = only(counter_access.check_lock_file(facts))
    assert check.state == "error"
    assert "alice" in check.found
    assert "TMPDIR" in check.fix_command
    facts.lock_file.writable = True
    assert counter_access.check_lock_file(facts) == []


def test_settings_that_change_results_silently_are_shown() -> None:
    facts = healthy()
    facts.config_files = [ConfigFile("config.ncu-cfg", ["[Launch-and-attach]", "-c = 1"])]
    check = only(counter_access.check_config_files(facts))
    assert check.state == "warning"
    assert "[Launch-and-attach] | -c = 1" in check.found
    assert "config.ncu-cfg.off" in check.fix_command


# -- packages, disk, secrets -----------------------------------------------------------------------


def test_without_the_reader_of_ncu_there_are_no_counters() -> None:
    facts = healthy()
    facts.packages = [Package("ncu-report"), Package("nvtx"), Package("hydra-core", "1.3", "ImportError: broken")]
    states = {check.name: (check.state, check.blocks) for check in surroundings.check_packages(facts)}
    assert states == {"ncu-report": ("missing", ("counters",)), "nvtx": ("missing", ()), "hydra-core": ("error", ())}


@pytest.mark.parametrize(
    ("torch", "state", "words"),
    [
        (Torch(), "ok", "not installed"),
        (Torch("2.11", "13.0", sees_gpu=True), "ok", "sees the GPU"),
        (Torch("2.11", None), "warning", "built without CUDA"),
        (Torch("2.11", "13.0"), "warning", "sees no GPU"),
        (Torch("2.11", "13.0", problem="RuntimeError: driver too old"), "warning", "driver too old"),
    ],
)
def test_pytorch(torch: Torch, state: str, words: str) -> None:
    facts = healthy()
    facts.torch = torch
    check = surroundings.check_models(facts)[0]
    assert check.state == state
    assert words in check.found


@pytest.mark.parametrize(
    ("role", "free", "state"),
    [
        ("working folder", 6e9, "ok"),
        ("working folder", 4e9, "warning"),
        ("temporary folder", 4e8, "error"),
        ("home folder", 4e8, "ok"),
        ("home folder", 1e6, "warning"),
        ("shared memory", 5e7, "warning"),
    ],
)
def test_disk_space(role: str, free: float, state: str) -> None:
    facts = healthy()
    facts.folders = [Folder(role, "/x", free_bytes=int(free))]
    check = only(surroundings.check_folders(facts))
    assert check.state == state
    assert bool(check.blocks) == (state == "error")


def test_secrets_are_named_and_never_shown() -> None:
    facts = healthy()
    facts.secret_variables = ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]
    check = only(surroundings.check_secrets(facts))
    assert check.state == "warning"
    assert "AWS_SECRET_ACCESS_KEY, HF_TOKEN" in check.found
    assert "llm-perf scrub" in check.fix_command
    assert "env -u AWS_SECRET_ACCESS_KEY -u HF_TOKEN" in check.fix_command


# -- trials, with tools that say what the real ones said -------------------------------------------

FAKE = """#!{python}
import json, lzma, pathlib, sys
T = json.loads(pathlib.Path({transcripts!r}).read_text(encoding="utf-8"))
argv = sys.argv[1:]
out = argv[argv.index("-o") + 1]
def unpack(path, target):
    pathlib.Path(target).write_bytes(lzma.decompress(pathlib.Path(path).read_bytes()))
if argv[0] == "export":
    unpack({timeline!r}, out); sys.exit(0)
said = T[{scenario!r}]
log = open(argv[argv.index("--log-file") + 1], "w") if "--log-file" in argv else sys.stdout
print(said["stdout"].replace("/run/out", out), file=log)
print({extra!r}, file=log)
print(said["stderr"], file=sys.stderr)
if {report!r} == ".ncu-rep": unpack({counters!r}, out + ".ncu-rep")
elif {report!r}: pathlib.Path(out + {report!r}).write_bytes(bytes(90000))
sys.exit(said["exit"])
"""


def fake(folder: Path, name: str, scenario: str, report: str, extra: str = "") -> Tool:
    path = folder / name
    text = FAKE.format(
        python=sys.executable,
        transcripts=str(TRANSCRIPTS),
        timeline=str(TIMELINE),
        counters=str(COUNTERS),
        scenario=scenario,
        report=report,
        extra=extra,
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return Tool(name, path, "2025.3.1.0")


@pytest.mark.process
def test_a_timeline_that_works(tmp_path: Path) -> None:
    found = trial.try_timeline(fake(tmp_path, "nsys", "nsys-ok", ".nsys-rep"))
    assert (found.status, found.kernels, found.ranges) == ("captured", 5, 3)
    facts = healthy()
    facts.trials = [found]
    assert only(profilers.check_timeline(facts)).state == "ok"
    assert only(profilers.check_importer(facts)).state == "ok"


@pytest.mark.process
def test_an_importer_that_does_not_start(tmp_path: Path) -> None:
    found = trial.try_timeline(fake(tmp_path, "nsys", "nsys-ok-no-libdw", ".qdstrm"))
    assert found.status == "nothing"
    assert found.diagnoses[0]["code"] == "IMPORTER_MISSING"
    facts = healthy()
    facts.trials = [found]
    check = only(profilers.check_timeline(facts))
    assert check.state == "error"
    assert "libdw1" in check.fix_command
    assert "llm-perf doctor" not in check.fix_command


@pytest.mark.process
def test_counters_that_work(tmp_path: Path) -> None:
    found = trial.try_counters(fake(tmp_path, "ncu", "ncu-ok-kernel", ".ncu-rep"), NCU_HELP)
    assert (found.status, found.kernels, found.device) == ("captured", 56, "NVIDIA H200")
    assert found.counters["gpu__time_duration.sum"] > 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters "
            "on the target device 0.",
            "COUNTER_PERMISSION",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like "
            "DCGM) is concurrently collecting profiling data.",
            "DRIVER_RESOURCE_BUSY",
        ),
    ],
)
def test_counters_that_are_refused(line: str, code: str, tmp_path: Path) -> None:
    found = trial.try_counters(fake(tmp_path, "ncu", "ncu-missing-slash", "", line), NCU_HELP)
    assert found.status == "nothing"
    assert found.diagnoses[0]["code"] == code
    facts = healthy()
    facts.trials = [found]
    assert not examine(facts).ready.counters
    assert examine(facts).ready.timeline


@pytest.mark.process
def test_a_profiler_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nsleep 60\n")
    path.chmod(0o755)
    began = time.monotonic()
    found = trial.try_counters(Tool("ncu", path, "1"), NCU_HELP, timeout_s=1.0)
    assert time.monotonic() - began < 30
    assert (found.status, found.timed_out) == ("nothing", True)


def test_a_count_of_zero_is_not_taken_for_a_measurement() -> None:
    facts = tried(healthy(), counters={"sm__inst_executed.sum": 0.0})
    assert only(profilers.check_counters(facts)).blocks == ("counters",)
    facts = tried(healthy(), counters={"sm__inst_executed.sum": 9.0, "gpu__time_duration.sum": 1.0})
    assert "no DRAM counter" in only(profilers.check_counters(facts)).found


def test_a_timeline_without_ranges_is_not_enough() -> None:
    facts = tried(healthy())
    facts.trials[1].ranges = 0
    assert only(profilers.check_timeline(facts)).state == "warning"


@pytest.mark.process
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_the_small_program_says_why_it_cannot_run() -> None:
    done = subprocess.run(trial.program(), capture_output=True, text=True)
    assert done.returncode == 3
    assert "libcuda" in json.loads(done.stdout)["error"]
    assert trial.try_undisturbed().problem.startswith("the driver's library cannot be loaded")


def test_every_diagnosis_about_the_machine_sends_to_the_doctor() -> None:
    codes = {rule.code for rule in RULES if "llm-perf doctor" in rule.fix}
    assert {"COUNTER_PERMISSION", "DRIVER_RESOURCE_BUSY", "IMPORTER_MISSING", "GPU_MISSING"} <= codes


# -- gathering on the machine the tests run on -----------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, a home and a temporary folder of its own, and a PATH to put programs on."""
    for name in ("desk", "home", "tmp", "bin"):
        (tmp_path / name).mkdir()
    for variable in ("LLM_PERF_NCU", "LLM_PERF_NSYS", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "desk")
    # Seconds each time, and the same answer; the test of the command asks for real.
    monkeypatch.setattr(gathering, "find_torch", Torch)
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.process
def test_facts_can_be_written_down_and_read_again(desk: Path) -> None:
    facts = gather(try_it=False)
    again = cattrs.structure(json.loads(json.dumps(attrs.asdict(facts))), Facts)
    assert again == facts
    assert str(desk / "desk") not in json.dumps(attrs.asdict(facts))


@pytest.mark.process
def test_nvidia_smi_is_asked(desk: Path) -> None:
    script(desk / "bin/nvidia-smi", f'case "$1" in --query-gpu*) echo "{H200}";; *) echo "12, /bin/x, 5";; esac')
    facts = gather(try_it=False)
    assert gpu.devices(facts)[0].name == "NVIDIA H200"
    assert "x (process 12" in only(gpu.check_use(facts)).found


@pytest.mark.process
def test_an_old_nvidia_smi_is_asked_for_less(desk: Path) -> None:
    script(
        desk / "bin/nvidia-smi",
        'case "$1" in *mig*) echo "Field \\"mig.mode.current\\" is not a valid field to query."; exit 2;; '
        '--query-gpu*) echo "0, Tesla K80, U, 418.1, 11441, 0, Default";; esac',
    )
    assert only(gpu.check_gpu(gather(try_it=False))).found == "Tesla K80, 11 GiB, driver 418.1"


@pytest.mark.process
def test_settings_and_locks_are_found_where_ncu_looks(desk: Path) -> None:
    Path("config.ncu-cfg").write_text("# mine\n[Launch-and-attach]\n-c = 1\n")
    settings = desk / "home/.config/NVIDIA Corporation"
    settings.mkdir(parents=True)
    (settings / "config.ncu-cfg").write_text("[Import]\n")
    (desk / "tmp/nsight-compute-lock").touch()
    facts = gather(try_it=False)
    paths = [file.path for file in facts.config_files]
    assert paths == ["config.ncu-cfg", "~/.config/NVIDIA Corporation/config.ncu-cfg"]
    assert facts.config_files[0].lines == ["[Launch-and-attach]", "-c = 1"]
    assert facts.lock_file is not None
    assert (facts.lock_file.owner, facts.lock_file.writable) == ("you", True)


@pytest.mark.process
def test_nothing_of_the_working_folder_is_loaded(desk: Path) -> None:
    for name in ("nvtx.py", "hydra.py", "ncu_report.py", "json.py"):
        Path(name).write_text(f"open({str(desk / 'ran')!r}, 'w')\nraise SystemExit\n")
    assert all(package.problem == "" for package in gather(try_it=False).packages)
    assert not (desk / "ran").exists()


@pytest.mark.process
def test_a_user_without_a_home(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    found = {folder.role: folder for folder in gather(try_it=False).folders}
    assert not found["home folder"].exists


@pytest.mark.process
def test_running_profilers_are_seen(desk: Path) -> None:
    sleep = shutil.copy(shutil.which("sleep") or "/bin/sleep", desk / "bin/nv-hostengine")
    child = subprocess.Popen([sleep, "30"])
    try:
        found = [p for p in gather(try_it=False).processes if p.pid == child.pid]
    finally:
        child.kill()
        child.wait()
    assert [(p.name, p.user) for p in found] == [("nv-hostengine", "you")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(desk: Path) -> None:
    (desk / "closed").mkdir(mode=0o500)
    facts = gather(try_it=False, out=desk / "closed" / "run")
    assert by_name(facts)[f"working folder ({desk}/closed/run)"].state == "error"


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.torch
def test_pytorch_is_asked_in_a_process_of_its_own() -> None:
    pytest.importorskip("torch")
    torch = find_torch()
    installed = importlib.metadata.version("torch").partition("+")[0]  # torch itself may add how it was built
    assert (torch.version.partition("+")[0], torch.problem) == (installed, "")


@pytest.mark.process
def test_a_package_that_crashes_is_contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ncu_report.py").write_text("import os; os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert all("Python could not be queried" in package.problem for package in find_packages())
    (tmp_path / "ncu_report.py").write_text("raise OSError('libnvperf.so: cannot open')\n")
    found = {package.name: package for package in find_packages()}
    assert found["ncu-report"].problem == "OSError: libnvperf.so: cannot open"
    assert found["hydra-core"].problem == ""


@pytest.mark.process
def test_the_command_where_there_is_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_" + "z" * 30
    monkeypatch.setenv("HF_TOKEN", secret)
    assert main(["doctor", "--no-try", "--json"]) == ExitCode.MISSING_TOOL
    shown = capsys.readouterr().out
    told = check_printed("doctor", shown)
    assert told["ready"]["counters"] is False
    assert told["facts"]["secret_variables"] == ["HF_TOKEN"]
    assert secret not in shown
    assert main(["doctor", "--no-try"]) == ExitCode.MISSING_TOOL
    text = capsys.readouterr().out
    assert "missing  Nsight Compute" in text
    assert "→ " in text
    assert "HF_TOKEN" in text
    assert secret not in text


@pytest.mark.process
def test_the_command_with_everything_there(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(TRANSCRIPTS.read_text(encoding="utf-8"))
    helps = {"ncu": "ncu-2025.3.1-help.txt", "nsys": "nsys-2025.3.1-help.txt"}
    for tool, help_text in helps.items():
        (desk / f"{tool}-version").write_text(said[f"{tool}-version"]["stdout"])
        text = f'case "$*" in --version) cat {desk}/{tool}-version;; *help*) cat {HERE}/transcripts/{help_text};; esac'
        script(desk / "bin" / tool, text)
    script(desk / "bin/nvidia-smi", f'case "$1" in --query-gpu*) echo "{H200}";; esac')
    code = main(["doctor", "--no-try", "--json"])
    told = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert states["GPU"] == states["Nsight Compute"] == states["Nsight Systems"] == "ok"
    assert told["ready"]["timeline"] is True
    assert code == (0 if told["ready"]["counters"] else ExitCode.MISSING_TOOL)
