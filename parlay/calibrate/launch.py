"""How this process was started: alone, or as one rank of torchrun, mpirun (Open MPI, MPICH, Intel MPI) or srun."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from parlay.errors import UsageError

DEFAULT_PORT = 29541  # torchrun's own store keeps 29500


@dataclasses.dataclass(frozen=True)
class Job:
    """One rank of a job."""

    launcher: str  # none, torchrun, ompi, pmi, slurm
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT


# launcher, rank, world, local rank. torchrun first: a job that Slurm started may run torchrun on each host, and then
# SLURM_* counts hosts while torchrun counts ranks. PMI before Slurm for the same reason.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",)),
    ("ompi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    ("pmi", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",)),
)


def job_of(environment: Mapping[str, str]) -> Job:
    """Return which rank this process is.

    Parameters
    ----------
    environment : mapping
        The process's environment variables [-].

    Returns
    -------
    Job
        Rank, number of ranks, rank on its host, and where rank 0 listens [-].

    Raises
    ------
    UsageError
        A variable is not a number, a rank lies outside the job, or nothing says where rank 0 listens.

    Examples
    --------
    >>> job_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "MASTER_ADDR": "n1"}).launcher
    'ompi'
    >>> job_of({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}).world
    1
    """
    for launcher, rank_name, world_name, local_names in _LAUNCHERS:
        if rank_name not in environment or world_name not in environment:
            continue
        rank, world = _number(environment, rank_name), _number(environment, world_name)
        local_name = next((name for name in local_names if name in environment), None)
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"rank {rank} of {world} ranks cannot be", where=f"{rank_name}, {world_name}")
        if local_name is None and world > 1:
            raise UsageError(f"{launcher} gives no rank on the host", where=local_names[0], hint="start with torchrun instead")
        local = _number(environment, local_name) if local_name else 0
        job = Job(launcher, rank, world, local)
        return job if world == 1 else _with_address(job, environment)
    return Job("none")


def _with_address(job: Job, environment: Mapping[str, str]) -> Job:
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else DEFAULT_PORT
    address = environment.get("MASTER_ADDR")
    if address is None and job.launcher == "slurm":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
        address = first_host(nodes) if nodes else environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if address is None and _one_host(job, environment):
        address = "127.0.0.1"
    if address is None:
        raise UsageError(
            "is not set, so the ranks cannot find each other",
            where="MASTER_ADDR",
            hint="export MASTER_ADDR=<host of rank 0>, with mpirun: -x MASTER_ADDR",
        )
    return dataclasses.replace(job, address=address, port=port)


def _one_host(job: Job, environment: Mapping[str, str]) -> bool:
    names = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
    return any(environment.get(name) == str(job.world) for name in names)


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list.

    Examples
    --------
    >>> first_host("gpu[007-009,12],login1"), first_host("node3")
    ('gpu007', 'node3')
    """
    found = re.match(r"([^\[,]+)(?:\[([^\]]+)\])?([^\[,]*)", nodes.strip())
    if found is None:
        raise UsageError(f"'{nodes[:60]}' is not a list of hosts", where="SLURM_JOB_NODELIST")
    head, numbers, tail = found.groups()
    first = re.split(r"[,-]", numbers)[0] if numbers else ""
    return head + first + (tail if numbers else "")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text.strip()):
        raise UsageError(f"'{text[:40]}' is not a number", where=name)
    return int(text)
