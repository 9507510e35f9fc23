"""A program that is started for ncu before it is known what ncu shall profile.

`ncu --mode launch` runs a program up to its first CUDA call and lets it wait there; `ncu --mode attach` profiles it
from then on. So the start of the program, often most of its time, need not wait for a plan. What goes wrong here
costs no result: whoever asked runs the program once more, in the ordinary way.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.nsight.ncu.argv import build_ncu_launch_cmd
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.process.interrupts import held as signals_held
from llm_perf_opt.process.supervise import (
    INTERRUPTED,
    INTERRUPTED_AGAIN,
    LOG_BYTES,
    QUICK_SECONDS,
    Ended,
    Follower,
    Guarded,
    Interruption,
    grace_seconds,
    longest_end,
)

CONNECTIONS = 4  # ports from which ncu chooses one for the program
# Files of ours beside the captures, until it is known which capture they belong to.
WAITING_LOG, ATTACHING_LOG = ".ahead.log", ".attach.log"
# Above the ports that Linux hands out by itself, so that nobody has got one of them when ncu comes to it.
_PORTS = range(61_000, 65_500, CONNECTIONS)
_LISTENS = "0A"  # the state of a socket, as /proc/net/tcp has it
_LOOK_S = 0.1  # between two looks for the program's port
_AGAIN_S = 0.3  # between two attempts to attach
_ATTEMPTS = 20  # to attach to a program that listens
_NOT_THERE = 1  # ncu's exit code where there is nothing to attach to
_WRITING_S = 120.0  # after the end of the program: for ncu to write its report
_WITHOUT_NCU_S = 10.0  # for the program to end by itself where ncu has failed
_CONNECTED = re.compile(r"^==PROF== Connected to process", re.MULTILINE)
# Not "nothing to attach to", which may be otherwise a moment later.
_REFUSED = re.compile(r"^==ERROR==.*\boption\b", re.MULTILINE | re.IGNORECASE)


class Parked:
    """The program on its way to its first CUDA call, or waiting there. Ended by `profile` or `discard`."""

    def __init__(
        self,
        command: list[str],
        ncu: Tool,
        folder: Path,
        *,
        port: int,
        environment: Mapping[str, str],
        nvtx_push_pop_scope: str | None = None,
        held: Sequence[int] = (),
    ) -> None:
        self.port = port
        self.why_not = ""  # ncu could not attach
        self.argv = build_ncu_launch_cmd(
            command, port=port, connections=CONNECTIONS, nvtx_push_pop_scope=nvtx_push_pop_scope, ncu=ncu.path
        )
        self._log, self._attaching_log = folder / WAITING_LOG, folder / ATTACHING_LOG
        self._log.unlink(missing_ok=True)
        self._grace_s = grace_seconds()
        self._began = time.monotonic()
        self._arrived: float | None = None  # when it was first seen to wait
        self._seen = True  # False: this system does not say who listens
        self._resumed: float | None = None  # when ncu came
        self._over = threading.Event()
        self._attach: Guarded | None = None
        self._abandoned = False  # ncu failed while the program ran: how that ends afterwards is not its own doing
        settings = {"grace_s": self._grace_s, "log_limit": LOG_BYTES, "parked": True}
        self._program = Guarded(self.argv, self._log, environment, settings, held=held)
        # A thread, for the moment matters: from then on, it is us who take the time.
        threading.Thread(target=self._watch, name="ahead", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            listens = is_listening(range(self.port, self.port + CONNECTIONS))
            if listens is None:
                self._seen = False
                return
            if listens:
                self._arrived = time.monotonic()
                return

    @property
    def seconds(self) -> float:
        """What the program has run so far, without the time it waited for us."""
        now = time.monotonic()
        if self._resumed is None:
            return (self._arrived or now) - self._began
        return (self._arrived or self._resumed) - self._began + now - self._resumed

    def discard(self) -> None:
        """Nobody needs it, or any more: leaves nothing of it, also where something went wrong on the way."""
        with signals_held():
            self._give_up()
            with contextlib.suppress(OSError):  # nothing can be written there any more
                for log in (self._log, self._attaching_log):
                    log.unlink(missing_ok=True)

    def profile(
        self,
        argv: list[str],
        *,
        log: Path,
        workload_log: Path,
        timeout_s: float | None,
        limit_s: float,
        follow: Callable[[str], None],
        tell: Callable[[str], None],
        held: Sequence[int] = (),
    ) -> Ended | None:
        """Attach with `argv` and see the program to its end; None where it could not be attached to.

        `log`: where `argv` has ncu write its messages; `workload_log`: for the output of the program. `limit_s`: how
        long it may take to arrive. Nothing of it is left afterwards, whatever came of it.
        """
        ended = Ended(exit_code=-1, seconds=0.0)
        interruption = Interruption()
        with contextlib.suppress(OSError):
            self._log.replace(workload_log)
        with interruption.listening():
            try:
                attached = self._attached(argv, log, ended, interruption, timeout_s, limit_s, held)
                if attached is None:
                    self._give_up()
                else:
                    self._see_to_end(attached, Follower(log, follow), ended, interruption, timeout_s, limit_s, tell)
            finally:
                self._finish(self._grace_s)
        ended.seconds = self.seconds
        ended.interrupted = ended.interrupted or interruption.times > 0
        said = self._said_beside(log)
        if attached is None and not (ended.interrupted or ended.timed_out):
            errors = [line for line in said.splitlines() if line.startswith("==ERROR==")]
            self.why_not = errors[-1] if errors else "the program was not there"
            return None
        ended.exit_code, ended.handed_on = self._program.exit_code, self._program.exit_code != 0
        if attached is not None and (self._abandoned or not ended.handed_on):
            ended.exit_code, ended.handed_on = attached.exit_code, False
        return ended

    def _attached(
        self,
        argv: list[str],
        log: Path,
        ended: Ended,
        interruption: Interruption,
        timeout_s: float | None,
        limit_s: float,
        held: Sequence[int],
    ) -> Guarded | None:
        """ncu, as soon as it has hold of the program; None where it cannot, or nobody wants it any more."""
        until = time.monotonic() + limit_s
        again = began = 0.0
        attempts = 0
        while time.monotonic() < until:
            now = time.monotonic()
            ended.interrupted = interruption.times > 0
            ended.timed_out = timeout_s is not None and self.seconds > timeout_s
            if ended.interrupted or ended.timed_out:
                return None
            attach = self._attach
            if attach is None and not self._program.is_running:
                return None
            if attach is None and now >= again and (self._arrived is not None or not self._seen):
                log.unlink(missing_ok=True)
                self._attaching_log.unlink(missing_ok=True)
                began = now
                if self._seen:
                    attempts += 1
                settings = {"grace_s": self._grace_s, "log_limit": LOG_BYTES}
                self._attach = Guarded(argv, self._attaching_log, {}, settings, held=held)
            elif attach is not None:
                running = attach.is_running  # before the log is read: what it wrote last counts
                if _CONNECTED.search(_text(log)):
                    self._resumed = began
                    self._program.wake()
                    return attach
                if not running:
                    attach.finish(longest_end(0))
                    self._attach = None
                    again = now + _AGAIN_S
                    refused = _REFUSED.search(_text(log) + _text(self._attaching_log))
                    if attach.exit_code != _NOT_THERE or refused or attempts >= _ATTEMPTS:
                        return None
            time.sleep(QUICK_SECONDS)
        return None

    def _see_to_end(
        self,
        attach: Guarded,
        reader: Follower,
        ended: Ended,
        interruption: Interruption,
        timeout_s: float | None,
        limit_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Where it has to end early, the program goes first: then ncu writes its report by itself."""
        asked = gone = lost = None  # when it was asked to end, when the program was gone, and when ncu
        urged = False
        while self._program.is_running or attach.is_running:
            reader.read()
            now = time.monotonic()
            ended.interrupted = ended.interrupted or interruption.times > 0
            if asked is None:
                ended.timed_out = timeout_s is not None and self.seconds > timeout_s
                if ended.timed_out or ended.interrupted:
                    asked = now
                    self._program.end()
                    if ended.interrupted:
                        tell(INTERRUPTED)
            elif now - asked > 2 * longest_end(self._grace_s):
                break
            if interruption.times > 1 and not ended.given_up:
                ended.given_up = True
                tell(INTERRUPTED_AGAIN)
                self._program.hurry()
                attach.hurry()
            if lost is None and not attach.is_running:
                lost = now
                self._abandoned = asked is None and attach.exit_code != 0 and self._program.is_running
            gone = gone or (None if self._program.is_running else now)
            if gone is not None and not urged and now - gone > (_WRITING_S if asked is None else self._grace_s):
                urged = True
                attach.end()
            # ncu ends after the program. Where it does not, the program may be stopped for good.
            alone = asked is None and lost is not None and self._program.is_running
            if alone and now - (lost or now) > (_WITHOUT_NCU_S if self._abandoned else limit_s):
                asked = now
                self._program.end()
            time.sleep(QUICK_SECONDS)
        self._finish(self._grace_s)
        reader.read(last=True)

    def _give_up(self) -> None:
        """There is nothing to be saved."""
        for command in (self._program, self._attach):
            if command is not None:
                command.hurry()
        self._finish(0.0)

    def _finish(self, grace_s: float) -> None:
        """Nothing is left; both are told at once, for each may wait for the other."""
        self._over.set()
        commands = [command for command in (self._program, self._attach) if command is not None]
        for command in commands:
            command.let_go()
        for command in commands:
            command.finish(longest_end(grace_s))

    def _said_beside(self, log: Path) -> str:
        """What the attaching ncu said, and not in its log: that is kept there as well."""
        said = _text(self._attaching_log)
        with contextlib.suppress(OSError):
            self._attaching_log.unlink(missing_ok=True)
            if said and log.exists():
                with log.open("a", encoding="utf-8") as file:
                    file.write(said)
        return said


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_ports() -> int | None:
    """The first of a few ports in a row that nobody uses; None where there are none."""
    for first in random.sample(_PORTS, len(_PORTS)):
        if all(_is_free(port) for port in range(first, first + CONNECTIONS)):
            return first
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def is_listening(ports: Iterable[int], tables: Path = Path("/proc/net")) -> bool | None:
    """Does anybody wait for a connection on one of these ports? None where the system does not say."""
    wanted = {f"{port:04X}" for port in ports}
    known = False
    for name in ("tcp", "tcp6"):
        try:
            lines = (tables / name).read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        known = True
        for line in lines:
            fields = line.split()
            if len(fields) > 3 and fields[3] == _LISTENS and fields[1].rpartition(":")[2] in wanted:
                return True
    return False if known else None
