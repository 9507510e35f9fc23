"""Sends a program's output into a file of its own: `python -I redirect.py FILE PID_FILE PROGRAM ARGUMENTS…`

nsys prints its own messages between those of the program it records. This runs in the place of the
program, points standard output and error at the file, notes its process id, which stays that of the
program, and becomes the program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    target, pid_file, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    Path(pid_file).write_text(str(os.getpid()), encoding="ascii")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell, by design
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main()
