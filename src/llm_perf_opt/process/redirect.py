"""Sends a program's output into a log of its own: `python -IS redirect.py FILE PID_FILE PROGRAM ARGUMENTS…`

nsys prints its own messages between those of the program it records. This runs in the place of the
program, points standard output and error at the log, notes its process id, which stays that of the
program, and becomes the program. The way to the log leads through the guard, which bounds it (guard.py);
where that cannot be reached, straight into the file.
"""

from __future__ import annotations

import os
import sys

CHANNEL = "LLM_PERF_PROGRAM_OUTPUT"  # as guard.py calls it


def main() -> None:
    target, pid_file, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        with open(pid_file, "w", encoding="ascii") as file_of_it:  # noqa: PTH123 - pathlib takes long to import
            file_of_it.write(str(os.getpid()))
    except OSError as error:  # only a stop in good order needs it
        print(f"{pid_file}: {error.strerror}", file=sys.stderr)
    for place in (os.environ.pop(CHANNEL, None), target):
        # The channel is a link of the system; in the place of the log one may lead anywhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_NOFOLLOW if place is target else 0)
        try:
            file = os.open(place, flags, 0o666) if place else -1
        except OSError:
            continue
        if file >= 0:
            os.dup2(file, 1)
            os.dup2(file, 2)
            break
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell, by design
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main()
