"""Runs programs in forks of this process, which has imported torch: that takes longer than what they do with it.

A line of JSON on standard input asks for one: `code`, its `environment`, and the files `out` and `err`. The answer is a
line with its exit code. Annotation finds torch imported, as in a program whose own start-up code has imported it.
"""

import json
import os
import runpy
import signal
import sys
from typing import Any

import torch  # noqa: F401


def forked(asked: dict[str, Any]) -> bool:
    """Whether this is the process that runs the program; the other one has waited for its end."""
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


if __name__ == "__main__":
    injected = sys.argv[1]
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if forked(asked):
            sys.argv = ["-c"]
            sys.path.insert(0, injected)
            runpy.run_path(f"{injected}/sitecustomize.py", run_name="sitecustomize")
            exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
            break  # and ends as any program, with what is registered for the end
