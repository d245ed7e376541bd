"""Which rank this is, from what each launcher sets."""

import pytest

from parlay.calibrate.launch import Job, first_host, job_of
from parlay.errors import UsageError

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MASTER_ADDR": "n0"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_NODELIST": "gpu[03-04]"}


def test_each_launcher():
    assert job_of({}) == Job("none")
    assert job_of(TORCHRUN) == Job("torchrun", 9, 16, 1, "10.0.0.1", 29500)
    assert job_of(PMI) == Job("pmi", 1, 2, 0, "n0", 29541)
    assert job_of(SLURM) == Job("slurm", 5, 8, 1, "gpu03", 29541)
    assert job_of(OMPI | {"MASTER_ADDR": "n0", "MASTER_PORT": "1234"}) == Job("ompi", 3, 4, 1, "n0", 1234)


def test_torchrun_inside_a_slurm_job_counts_ranks_not_hosts():
    assert job_of(SLURM | TORCHRUN).rank == 9
    assert job_of(SLURM | OMPI | {"MASTER_ADDR": "n0"}).launcher == "ompi"


def test_a_batch_script_without_srun_is_one_process():
    assert job_of({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[03-04]"}) == Job("none")


def test_ranks_of_one_host_need_no_address():
    assert job_of(OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).address == "127.0.0.1"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (OMPI, "MASTER_ADDR: is not set"),
        (TORCHRUN | {"RANK": "16"}, "rank 16 of 16"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "'many' is not a number"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "n"}, "no rank on the host"),
    ],
)
def test_what_cannot_be(environment, message):
    with pytest.raises(UsageError) as caught:
        job_of(environment)
    assert message in str(caught.value)


def test_lists_of_hosts():
    assert first_host("a-[1,5-7]-ib,b") == "a-1-ib"
    assert first_host("n1,n2") == "n1"
