"""The part of a server's run that is measured: opened once it serves, closed after enough steps, then the server is ended.

Everything is decided from outside: the annotation notes how many steps a process has run (`steps` in its log), the
server's output and the clock say when to begin, and `llm-perf window start|stop RUN` leaves a file in the run. Moments
are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from llm_perf_opt.capture.context import RunContext
from llm_perf_opt.capture.load_client import BETWEEN, PIECES, SEVERAL, LoadClient
from llm_perf_opt.capture.refused_loads import unanswered
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import UserError
from llm_perf_opt.options.values import parse_seconds
from llm_perf_opt.planning import spoken_seconds
from llm_perf_opt.process.supervise import Ended, run_supervised
from llm_perf_opt.processes import listening
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.names import visible
from llm_perf_opt.request import ServingRequest
from llm_perf_opt.untrusted import parse_json

ASKED = {"start": ".window-start", "stop": ".window-stop"}  # files that `llm-perf window` leaves in a run
LOAD = "load.json"
Follow = Mapping[Path, Callable[[str], None]]  # files to read meanwhile, and what to do with their lines
_WARM = 8  # steps that are not waited for, where nothing else says when to begin
_READY_S = 1.0  # between two questions whether the server is ready
_PORTS = 5  # named at the most
_SAY_S = 30.0  # between two lines that say what is waited for
_END_S = 5.0  # that a load generator may take to end
_DIES_S = 3.0  # that a server may take to end by itself once requests have failed
_WHY_NOTHING = ("NOTHING_TIMED", "LOAD", "WINDOW_NOT_OPENED")  # the others: a server was not asked, or did not answer
_AGAIN_S = (
    15.0  # that a server may take; transformers waits for a thread that never ends, until it is interrupted again
)


class ServerWindow:
    """Of one run of a server. `is_done` is asked again and again while it runs."""

    def __init__(self, asked: ServingRequest, run: Path, report_progress: Callable[[str], None], *, into: str) -> None:
        """`into`: the folder of the run that what the load did goes to."""
        self.opened_ns: int | None = None
        self.closed_ns: int | None = None
        self._asked, self._run, self._into, self._report_progress = asked, run, run / into, report_progress
        self._server = LoadClient(asked)  # asked whether it is ready, also where somebody else sends the requests
        self._client = self._server if asked.load is not None else None
        self._generator: subprocess.Popen[bytes] | None = None
        self._generator_failed = False  # by itself
        self._steps: dict[int, int] = {}  # by process
        self._calls: dict[int, int] = {}  # of models, likewise: they count where nothing says what a step is
        self._before: dict[bool, int] = {}  # what had run when it was opened: calls, and steps
        self._is_said = False  # what the server was to print, it has printed
        self._is_ready = False  # the server has answered
        self._started, self._looked = time.monotonic(), 0.0
        self._said = self._started  # when it was said last what is waited for
        self._ports: list[int] = []  # on which the program listened while nothing answered at the URL
        self._is_kept = False  # the window was closed before the server was ended
        self.on_kept: Callable[[], None] = lambda: None  # what is done when the window of a kept server is closed
        self.on_end: Callable[[], None] = lambda: None  # what is done before the server is ended
        self._forget_asked()

    @staticmethod
    def of(run: RunContext, into: str, **changed: Any) -> ServerWindow | None:
        """That of a step of a run; None where it runs no server. `changed`: of what was asked for."""
        asked = evolve(run.request.serving, **changed)
        return ServerWindow(asked, run.directory.path, run.report_progress, into=into) if asked.is_asked else None

    def watch(self, argv: list[str], notes: Path, output: Path, follow: Follow, again_s: float, **more: Any) -> Ended:
        """Run the server until its window is done. `notes`, `output`: what the annotation and the server write."""
        if (self._client is not None or self._asks) and self._server.is_ready():
            raise UserError(
                f"Something else already answers at {self._asked.url}, and the requests would go there.",
                "End it; or let this server listen on another port, and name that with --url.",
            )
        notes.unlink(missing_ok=True)
        follow = {notes: self._note, output: self._line, **follow}
        try:
            ended = run_supervised(
                argv, follow=follow, is_done=self._may_end, before_end=self._before_end, again_s=again_s, **more
            )
        finally:
            self.close("the server has ended")
        if self._is_kept and ended.interrupted and not ended.interrupted_twice:
            return evolve(ended, interrupted=False, done=True)  # that is how one ends that was kept
        return ended

    def _may_end(self) -> bool:
        """Whether the server is to be ended; one that is kept is not, but what was measured is shown at once."""
        was_open = self.closed_ns is None
        if not self.is_done():
            return False
        if was_open and self._asked.keep:
            self.on_kept()
        if self._client is not None and self._client.failures and self.closed_ns is not None:
            # Perhaps it is ending by itself, and its exit code says why.
            return not self._asked.keep and time.monotonic_ns() - self.closed_ns > _DIES_S * 1e9
        return not self._asked.keep

    def _before_end(self) -> None:
        """Clients are to see no server that goes away, and it may have to be killed."""
        self._is_kept = self._asked.keep and self.closed_ns is not None
        if self.opened_ns is None and self._asks and not self._is_ready:
            self._ports = listening()
        self.close("the server is ended")
        self.on_end()

    def _note(self, line: str) -> None:
        try:
            note = parse_json(line)
        except ValueError:
            return
        if isinstance(note, dict) and note.get("event") == "steps":
            pid = note.get("pid")
            for name, counts in (("count", self._steps), ("calls", self._calls)):
                if isinstance(pid, int) and isinstance(count := note.get(name), int):
                    counts[pid] = count

    def _line(self, line: str) -> None:
        after = self._asked.after
        self._is_said = self._is_said or (after is not None and _seconds(after) is None and after in line)

    @property
    def steps(self) -> int:
        """Of the busiest process: workers run the same steps side by side."""
        return self._counted(bool(max(self._steps.values(), default=0)))

    def _counted(self, steps: bool) -> int:
        return max((self._steps if steps else self._calls).values(), default=0)

    @property
    def _done(self) -> int:
        """Steps since it was opened."""
        steps = bool(max(self._steps.values(), default=0))
        return self._counted(steps) - self._before[steps]

    def is_done(self) -> bool:
        """Open the window when it is time, and close it; True once it is closed."""
        if self.closed_ns is None and self.opened_ns is None and self._may_open():
            self._open()
        elif self.closed_ns is None and self.opened_ns is not None and (why := self._why_closed()):
            self.close(why)
        if self.closed_ns is None and time.monotonic() - self._said >= _SAY_S:
            self._said = time.monotonic()
            self._report_progress(f"  {self._waited_for()} ({spoken_seconds(self._said - self._started)})")
        return self.closed_ns is not None

    def _waited_for(self) -> str:
        if self.opened_ns is not None:
            answered = (
                f"{len(self._client.answered):,} of {self._client.requests:,} requests are answered, "
                if self._client
                else ""
            )
            return f"the window is open: {answered}{self._done:,} steps so far"
        if self._is_ready:
            return "the first request is not answered yet"
        if self._asks:
            ports = listening()
            if self._server.port in ports:
                return f"the program listens at {self._asked.url}, but does not answer over HTTP yet"
            return f"nothing answers at {self._asked.url} yet" + (
                f"; the program listens on port {_named(ports)}" if ports else ""
            )
        if self._asked.after is not None and _seconds(self._asked.after) is None:
            return f"the program has not printed {self._asked.after!r} yet; to start now: llm-perf window start {self._run}"
        return f"the window is not open yet: {self.steps:,} steps so far"

    def _may_open(self) -> bool:
        if (self._run / ASKED["start"]).exists():
            return True
        after = self._asked.after
        if after is not None:
            seconds = _seconds(after)
            return self._is_said if seconds is None else time.monotonic() - self._started >= seconds
        if self._asks:
            now = time.monotonic()
            if not self._is_ready and now - self._looked >= _READY_S:
                self._looked, self._is_ready = now, self._server.is_ready()
            return self._is_ready and (self._client is None or self._client.is_warm())
        return self._asked.window is not None and self.steps >= _WARM

    @property
    def _asks(self) -> bool:
        """Is the server asked whether it is ready?"""
        return self._asked.after is None and (self._client is not None or bool(self._asked.load_command))

    def _open(self) -> None:
        self.opened_ns = time.monotonic_ns()
        self._before = {steps: self._counted(steps) for steps in (False, True)}
        self._report_progress("  the window is open")
        if self._client is not None:
            self._client.start()
        elif self._asked.load_command:
            words = shlex.split(self._asked.load_command)  # no shell: they are passed on as they are
            with (self._into / "load.log").open("wb") as log:
                self._generator = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )

    def _why_closed(self) -> str:
        if (self._run / ASKED["stop"]).exists():
            return "asked for"
        if self._asked.window is not None and self._done >= self._asked.window:
            return f"{self._done:,} {'steps' if max(self._steps.values(), default=0) else 'calls of models'} were run"
        if self._client is not None:
            if self._client.is_done:
                return "all requests were answered" if not self._client.failures else "all requests have ended"
            if why := self._client.gave_up():
                return why
        if self._generator is not None and (code := self._generator.poll()) is not None:
            self._generator_failed = code != 0
            return f"the load generator has {f'failed with exit code {code}' if code else 'ended'}"
        return ""

    def close(self, why: str) -> None:
        """Also where the server ends by itself."""
        if self.closed_ns is not None:
            return
        self.closed_ns = time.monotonic_ns()
        if self._client is not None:
            self._client.stop()
        if self._generator is not None and self._generator.poll() is None:
            _end(self._generator)
        self._forget_asked()
        self._report_progress(f"  the window is closed: {why}")

    def _forget_asked(self) -> None:
        for name in ASKED.values():
            (self._run / name).unlink(missing_ok=True)

    @property
    def waits(self) -> dict[str, Int64s]:
        """Of the built-in client: what for, and rows of from and to."""
        return {} if self._client is None else self._client.waits()

    def _not_opened(self) -> Diagnosis:
        if self._asks and self._is_ready:
            return diagnose("WINDOW_NOT_OPENED.first", url=self._asked.url)
        if self._server.port in self._ports:
            return diagnose("WINDOW_NOT_OPENED.silent", url=self._asked.url)
        if self._ports:
            own = f"http://127.0.0.1:{self._ports[0]}"
            return diagnose("WINDOW_NOT_OPENED.port", url=self._asked.url, ports=_named(self._ports), own=own)
        if self._asked.after is not None and _seconds(self._asked.after) is None:
            return diagnose("WINDOW_NOT_OPENED.text", text=self._asked.after)
        return diagnose("WINDOW_NOT_OPENED", steps=self.steps)

    def finish(self, note: Callable[[Diagnosis], None]) -> tuple[int, int] | None:
        """The server has ended: the moments between which it was measured, and what is to be said of it."""
        self.close("the server has ended")
        if self.opened_ns is None or self.closed_ns is None:
            note(self._not_opened())
            return None
        if self._client is not None:
            found = self._client.result()
            (self._into / LOAD).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            note(_told(found))
        if self._generator is not None and self._generator_failed:
            log = self._into / "load.log"
            last = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()][-1:]
            said = f', and said last: "{visible(last[0], 200)}"' if last else ""
            file = log.relative_to(self._run)
            note(diagnose("LOAD.generator", code=self._generator.returncode, said=said, log=file))
        return self.opened_ns, self.closed_ns


def _named(ports: list[int]) -> str:
    return ", ".join(map(str, ports[:_PORTS]))


def run_watched(
    window: ServerWindow | None,
    argv: list[str],
    *,
    notes: Path,
    output: Path,
    follow: Follow,
    again_s: float = _AGAIN_S,
    **more: Any,
) -> Ended:
    """`run_supervised`, and of a server until its window is done. `again_s`: before it is interrupted again; 0: never."""
    if window is None:
        return run_supervised(argv, follow=follow, **more)
    return window.watch(argv, notes, output, follow, again_s, **more)


def _end(generator: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(generator.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            generator.wait(_END_S)
            return


def _told(found: dict[str, Any]) -> Diagnosis:
    """What the client saw, in a sentence."""

    def times(name: str) -> str:
        return " / ".join(f"{1e3 * found[name][p]:,.1f}" for p in ("p50", "p90", "p99")) + " ms" if found[name] else "–"

    counts = found["requests"]
    failed = f", {counts['failed']:,} failed ({found['first_failure']})" if counts["failed"] else ""
    if not counts["answered"]:
        cut = found["output_tokens"] and not counts["failed"]
        return diagnose("LOAD.cut", tokens=found["output_tokens"]) if cut else unanswered(found, failed)
    several = found["tokens_per_piece"] or 1.0
    return diagnose(
        "LOAD.some" if counts["failed"] else "LOAD",
        answered=f"{counts['answered']:,}",
        failed=failed,
        rate=f"{found['output_tokens_per_s'] or 0:,.1f}",
        ttft=times("ttft_s"),
        tpot=times("tpot_s"),
        between=BETWEEN if several < SEVERAL else f"{PIECES} ({several:.1f} tokens)",
        itl=times("itl_s"),
        e2e=times("e2e_s"),
    )


def nothing_is_explained(diagnostics: Iterable[Diagnosis]) -> bool:
    """Has it been said why nothing was timed?"""
    return any(one.code in _WHY_NOTHING and one.severity == "error" for one in diagnostics)


def _seconds(text: str) -> float | None:
    try:
        return parse_seconds(text)
    except UserError:
        return None
