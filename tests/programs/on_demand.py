"""Runs programs in forks of this process, which has imported torch: that takes longer than what they do with it.

A line of JSON on standard input asks for one: `code` or the `path` of a file, its `environment`, the files `out` and
`err`, and what is to be imported before (`modules`). The answer is a line with its exit code. Annotation finds torch
imported, as in a program whose own start-up code has imported it.

Taking torch down takes as long again: a program that ends well ends with what is registered for the end, and leaves the
rest to the system.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from typing import Any

import torch  # noqa: F401


def forked(asked: dict[str, Any]) -> bool:
    """Whether this is the process that runs the program; the other one has waited for its end."""
    for name in asked["modules"]:
        importlib.import_module(name)
    gc.freeze()  # what is there already is not gone through, and so not copied
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        return False
    signal.alarm(300)
    os.environ.clear()
    os.environ.update(asked["environment"])
    for descriptor, name in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)
    return True


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
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if forked(asked):
            run(asked, sys.argv[1])
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(0)
