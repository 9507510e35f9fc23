"""Jobs of several ranks on a real Ray of two nodes on this machine, submitted as the documentation says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster_cases import RANKS, SUBMIT, Case, all_ranks, ended


@contextlib.contextmanager
def ray(folder: Path, python: Path, ports: Iterator[int]) -> Iterator[dict[str, str]]:
    """A head and a second node, each with two CPUs; the variables with which jobs are submitted to it."""
    port, dashboard = next(ports), next(ports)
    command = [str(python.with_name("ray")), "start", "--block", "--num-cpus", "2", "--disable-usage-stats"]
    # Ray's own files: a path of sockets must be short.
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_DEDUP_LOGS": "0",
        "RAY_AUTH_MODE": "disabled",  # else a token that another Ray left in the home folder would be asked for
    }
    head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder / 'r'}"]
    head += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    second = [f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1"]
    started: list[subprocess.Popen[bytes]] = []
    nodes = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}
    try:
        for words in (head, second):
            quiet = subprocess.DEVNULL
            started.append(
                subprocess.Popen([*command, *words], env=nodes, stdout=quiet, stderr=quiet, start_new_session=True)
            )
            time.sleep(8)
        environment["NODE2"] = str(started[-1].pid)
        deadline = time.monotonic() + 180  # on a busy machine it takes its time
        asked = [str(python.with_name("ray")), "job", "list"]
        while subprocess.run(asked, env=environment, capture_output=True, timeout=60).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"Ray does not come up: see the logs in {folder / 'r'}")
            time.sleep(1)
        yield environment
    finally:
        for one in reversed(started):
            for number in (signal.SIGTERM, signal.SIGKILL):  # all that it has started is in its session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(15)


def submit(case: Case, steps: int, **variables: str) -> subprocess.Popen[str]:
    words = ["ray", "job", "submit", "--", "python", str(SUBMIT / "ray_job.py"), "--ranks", str(RANKS)]
    for name, value in variables.items():
        words[3:3] = ["--runtime-env-json", f'{{"env_vars": {{"{name}": "{value}"}}}}']
    return case.start([*words, "--out", str(case.run), *case.program(steps)])


def ray_everything(case: Case) -> None:
    code, printed = ended(submit(case, 20))
    assert code == 0, printed[-2000:]
    assert all_ranks() <= case.scopes()
    assert "rank 1: forward takes" in case.told()


def ray_one_fails(case: Case) -> None:
    code, printed = ended(submit(case, 20, FAILS="3"))
    assert code != 0, printed[-2000:]
    assert "WORKLOAD_FAILED: rank 3 on" in case.told()
    assert all_ranks() <= case.scopes()


def ray_one_is_killed(case: Case) -> None:
    job = submit(case, 300)
    case.when_stepping()
    os.kill(case.pid_of(2), signal.SIGKILL)
    ended(job)
    assert "RUN_UNFINISHED: rank 2 on" in case.told()
    assert {"rank:0", "rank:1", "rank:3"} <= case.scopes()


def ray_loses_a_node(case: Case) -> None:
    """All that the second node has started is gone at once, as with its machine."""
    job = submit(case, 300)
    case.when_stepping()
    os.killpg(int(case.environment["NODE2"]), signal.SIGKILL)
    ended(job)
    assert case.scopes() & all_ranks()
    assert "RUN_UNFINISHED" in case.told() or "WORKLOAD_FAILED" in case.told()


RAY_CASES: tuple[Callable[[Case], None], ...] = (ray_everything, ray_one_fails, ray_one_is_killed, ray_loses_a_node)
