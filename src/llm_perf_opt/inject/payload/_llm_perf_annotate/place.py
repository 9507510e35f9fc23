"""Which process of a job this is, as its launcher says in the environment.

Read inside the program, so that the ranks of one recording are told apart, and by llm-perf itself where it is started
once for each rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

# Name; variables of the rank, the number of ranks, the rank on the node, the number of nodes, and what names the job.
# An inner launcher comes first: torchrun or mpirun inside a task of Slurm.
LAUNCHERS = (
    ("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", ("GROUP_WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",)),
    (
        *("mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK"),
        *(("OMPI_MCA_orte_num_nodes",), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    ),
    (
        *("slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID"),
        *(("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), ()),
    ),
    ("mpirun", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", (), ("PMI_JOBID",)),
    ("mpirun", "PMIX_RANK", (), "", (), ("PMIX_NAMESPACE",)),
)
_NO_ID = ("", "none")  # what torchrun says where nobody gave it a name
_MOST = 10**6


class Place(NamedTuple):
    """A process of a job."""

    launcher: str
    rank: int
    size: int | None  # ranks of the job; None: nobody says
    local: int | None  # its rank on its node
    node: str
    nodes: int | None  # of the job
    job: str  # the same on all ranks, and another for another job; empty: nobody says


def place_of(environ: Mapping[str, str]) -> Place | None:
    """None where no launcher says that there are ranks, or where there is only one."""
    for launcher, rank_name, sizes, local, nodes, ids in LAUNCHERS:
        rank = _number(environ, rank_name)
        if rank is None or (launcher == "slurm" and _is_batch_script(environ)):
            continue
        size = _first(environ, sizes)
        if sizes and (size is None or rank >= size):
            continue
        if size == 1:
            return None
        node = environ.get("SLURMD_NODENAME") or os.uname().nodename
        job = _job(launcher, ids, environ)
        return Place(launcher, rank, size, _number(environ, local), node, _first(environ, nodes), job)
    return None


def _is_batch_script(environ: Mapping[str, str]) -> bool:
    """The script of sbatch has a number of its own, too, but is no task: what it starts are the ranks."""
    return "SLURM_STEP_ID" not in environ and environ.get("ENVIRONMENT") == "BATCH"


def _job(launcher: str, ids: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Names of the job around, and of the launcher's own."""
    parts = [f"slurm-{environ['SLURM_JOB_ID']}"] if environ.get("SLURM_JOB_ID") else []
    if parts and environ.get("SLURM_STEP_ID"):
        parts[0] += f".{environ['SLURM_STEP_ID']}"
    found = next((environ[name] for name in ids if environ.get(name, "") not in _NO_ID), "")
    return "-".join([*parts, *([f"{launcher}-{found}"] if found else [])])


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of them that is a number above 0."""
    return next((found for found in (_number(environ, name) for name in names) if found), None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 and int(text) < _MOST else None
