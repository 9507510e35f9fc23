"""Runs programs in forks of this process, which has imported torch: that takes longer than what they do with it.

Each connection to the socket it is given is a worker of the tests. A line of JSON asks for a program: `code` or the
`path` of a file, its `environment`, the working `folder`, the files `out` and `err`, and what is to be imported before
(`modules`). The answer is a line with its exit code. Annotation finds torch imported, as in a program whose own start-up
code has imported it. Programs of several workers run side by side; with the last worker, this process ends.

Taking torch down takes as long again: a program that ends well ends with what is registered for the end, and leaves the
rest to the system.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from io import TextIOWrapper
from typing import Any

import torch  # noqa: F401


class Server:
    """Its connections, and the programs that run."""

    def __init__(self, listener: socket.socket, folder: str) -> None:
        self._listener, self._folder = listener, folder
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ, self._accept)
        self._workers: dict[socket.socket, TextIOWrapper] = {}
        self._open = True

    def program(self) -> dict[str, Any] | None:
        """What this process, by now a fork, is to run. None: it is the one that forks, and nobody asks any more."""
        while self._open:
            for ready, _ in self._waiting.select():
                asked: dict[str, Any] | None = ready.data()
                if asked is not None:
                    return asked
        return None

    def _accept(self) -> None:
        worker, _ = self._listener.accept()
        self._workers[worker] = worker.makefile(encoding="utf-8")
        self._waiting.register(worker, selectors.EVENT_READ, lambda: self._answer(worker))

    def _answer(self, worker: socket.socket) -> dict[str, Any] | None:
        line = self._workers[worker].readline()
        if not line:
            self._forget(worker)
            return None
        asked: dict[str, Any] = json.loads(line)
        for name in asked["modules"]:
            importlib.import_module(name)
        gc.freeze()  # what is there already is not gone through, and so not copied
        pid = os.fork()
        if not pid:
            self._leave_to_the_other()
            return asked
        ended = os.pidfd_open(pid)
        self._waiting.register(ended, selectors.EVENT_READ, lambda: self._tell(worker, pid, ended))
        return None

    def _tell(self, worker: socket.socket, pid: int, ended: int) -> None:
        self._waiting.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if worker in self._workers:
            with contextlib.suppress(BrokenPipeError):  # who has asked has gone
                worker.sendall(f"{code}\n".encode())

    def _forget(self, worker: socket.socket) -> None:
        self._waiting.unregister(worker)
        self._workers.pop(worker).close()
        worker.close()
        if self._workers:
            return
        folder = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # meanwhile nobody connects
        self._listener.setblocking(False)
        try:
            self._accept()
            self._listener.setblocking(True)
        except BlockingIOError:
            self._listener.close()
            self._open = False
        os.close(folder)

    def _leave_to_the_other(self) -> None:
        """A fork that lived on would keep them open. Only closed: the selector is that of both processes."""
        self._listener.close()
        for worker, lines in self._workers.items():
            lines.close()
            worker.close()
        self._waiting.close()


def prepare(asked: dict[str, Any]) -> None:
    signal.alarm(300)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for descriptor, name in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)


def run(asked: dict[str, Any], injected: str) -> None:
    if os.environ.get("PYTHONPATH", "").split(os.pathsep)[0] == injected:
        sys.path.insert(0, injected)
        runpy.run_path(f"{injected}/sitecustomize.py", run_name="sitecustomize")
    if asked["path"] is None:
        sys.argv = ["-c"]
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [asked["path"]]
        runpy.run_path(asked["path"], run_name="__main__")


if __name__ == "__main__":
    _, injected, folder, descriptor = sys.argv
    asked = Server(socket.socket(fileno=int(descriptor)), folder).program()
    if asked is not None:
        prepare(asked)
        run(asked, injected)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)
