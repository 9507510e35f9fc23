"""Counters of ranks that run beside others, without a deadlock.

ncu runs a kernel several times, and one at a time. A collective that runs again waits for ranks that do not: it must
never be replayed. So the first launches of every other kernel are taken of one rank, while the others run as they are;
or of all ranks, where ncu keeps them in step itself (`--communicator`, `--lockstep-kernel-launch`).
"""

from __future__ import annotations

from collections.abc import Collection

import attrs
from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.families import COLLECTIVE, any_case
from llm_perf_opt.nsight.ncu.argv import NcuOptions

LONGEST_S = 900.0  # under ncu, where nobody gave a time: longer than any timeout of NCCL, so that a hang ends somewhere
_LOCKSTEP = "--lockstep-kernel-launch"
_PEERS = ("--communicator-tcp-num-peers", "--communicator-num-peers")  # by version
_HOST = "--communicator-tcp-hostname"


@define(frozen=True)
class Lockstep:
    """Ranks that ncu keeps in step."""

    ranks: int
    host: str  # where they meet


def without_collectives(options: NcuOptions, launches: int) -> NcuOptions:
    """The first launches of every kernel and launch configuration that talks to no other rank.

    Names are compared mangled: else all templates of a function count as one kernel, and most are never sampled. The
    words that collectives are known by are in mangled names, too. ncu 2025.3.1 takes an expression that looks ahead, and
    profiles what it lets through (`counters-2` of benchmarks/results/ranks-h200.md); what comes through it all the same
    is seen while it runs (`capture/collective_watch.py`).
    """
    _refuse_chosen(options)
    return attrs.evolve(
        options,
        kernel_name=_without_collectives(),
        kernel_name_base="mangled",
        filter_mode="per-launch-config",
        launch_count=launches,
    )


def leaves_out_collectives(options: NcuOptions) -> bool:
    """Are these the options of a rank beside others?"""
    return options.kernel_name == _without_collectives()


def _without_collectives() -> str:
    return f"regex:^(?!.*({any_case(COLLECTIVE)})).*$"


def in_lockstep(options: NcuOptions, step: Lockstep, known: Collection[str], ncu: str) -> NcuOptions:
    """The same for all ranks at once; only an ncu with a communicator can."""
    peers = next((flag for flag in _PEERS if flag in known), None)
    if peers is None or not {"--communicator", _LOCKSTEP} <= set(known):
        raise UserError(
            f"{ncu} cannot keep several ranks in step: it has no --communicator.",
            "Collect counters of one rank with --counter-rank 0, or install Nsight Compute 2026.1 or later.",
        )
    host = (_HOST, step.host) if _HOST in known else ()
    words = ("--communicator", "tcp", peers, str(step.ranks), _LOCKSTEP, *host)
    return attrs.evolve(options, extra_args=(*options.extra_args, *words))


def _refuse_chosen(options: NcuOptions) -> None:
    """What would let collectives in again, or replays the whole program, which only all ranks together can."""
    if options.replay_mode not in (None, "kernel"):
        raise UserError(
            f"--replay-mode {options.replay_mode} replays ranges or the whole program, and the other ranks run it once.",
            "Leave it out: kernels of one rank are replayed one by one.",
        )
    if any((options.kernel_name, options.kernel_id, options.launch_skip, options.launch_count, options.filter_mode)):
        raise UserError(
            "--counter-rank decides which launches are profiled: the first of each kernel, except collectives.",
            "Leave out --kernel and --launch; --launches sets how many of each.",
        )
