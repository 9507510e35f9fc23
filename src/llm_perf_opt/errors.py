"""What can go wrong in front of a user, as values: a message, the fix, and the exit code of the contract."""

from __future__ import annotations

from enum import IntEnum

NOTEBOOK_FIX = "In the notebook, %load_ext llm_perf_opt, then begin the cell with %%llm_perf; or make a script of it: jupyter nbconvert --to script FILE"


class ExitCode(IntEnum):
    """Exit codes other programs rely on."""

    DONE = 0
    BAD_INPUT = 2  # command line, configuration, or a file that is not what it should be
    MISSING_TOOL = 3  # a tool, a permission or a GPU is missing
    WORKLOAD_FAILED = 4
    NOTHING_CAPTURED = 5
    NOTHING_MATCHED = 6  # only with --strict
    WORSE = 7  # only with --fail-on
    UNSURE = 8  # only with --fail-on unsure
    TIMED_OUT = 124
    INTERRUPTED = 130


class UserError(Exception):
    """An error whose text is meant for the person at the terminal: one sentence of cause, one of fix."""

    def __init__(self, message: str, fix: str = "", code: ExitCode = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class UnreadableInput(UserError):
    """An input file is missing, damaged, or of a kind this project does not read."""


class MissingTool(UserError):
    """A program this input needs is not installed."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix, ExitCode.MISSING_TOOL)
