"""What every capture step knows of itself, so that a run can be resumed without knowing which step is which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llm_perf_opt.capture.resume_state import ResumeState
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.manifest import Step


class CaptureStep(Protocol):
    """One step of a run. It may take several commands, each noted in the manifest as a `Step`."""

    def owns(self, command: Step) -> bool:
        """Is a command of the manifest one of this step's?"""

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        """Note in `state` which results of this step are whole; those of the steps before are noted already."""

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        """What has to be taken, in words."""

    def stays(self, command: Step, state: ResumeState) -> bool:
        """Does a command of this step count as done when the run goes on?"""

    def files(self, command: Step) -> Sequence[str]:
        """Files below the run directory that would be in the way when this command is run again."""
