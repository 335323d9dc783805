"""What a worker finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.agent.devices import DeviceMask
from phalanx.agent.environment import worker_environment
from phalanx.rendezvous.round import Round


def environment_of(
    local_rank: int, inherited: Mapping[str, str], nproc: int = 4, **more: Any
) -> dict[str, str]:
    settled = Round(
        number=3,
        restart_count=1,
        reason="rank 0 failed",
        group_rank=2,
        group_world_size=3,
        first_rank=8,
        local_world_size=nproc,
        world_size=12,
        master_addr="10.0.0.1",
        master_port=29500,
    )
    return worker_environment(
        inherited,
        settled,
        local_rank,
        agent_socket="/run/agent.sock",
        role="trainer",
        run_id="job7",
        max_restarts=5,
        stop_signals="SIGTERM,SIGINT",
        job_token="t0k3n",
        **more,
    )


def test_a_worker_learns_its_place_in_the_round() -> None:
    assert environment_of(1, {}) == {
        "LOCAL_RANK": "1",
        "RANK": "9",
        "GROUP_RANK": "2",
        "ROLE_RANK": "9",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "4",
        "WORLD_SIZE": "12",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "12",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "job7",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PHALANX_JOB": "t0k3n",
        "PHALANX_ROUND": "3",
        "PHALANX_RESTART_REASON": "rank 0 failed",
        "PHALANX_AGENT": "/run/agent.sock",
    }


def test_what_the_user_set_is_not_overruled() -> None:
    added = environment_of(0, {"OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    assert "OMP_NUM_THREADS" not in added
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in added


def test_a_job_inside_a_job_belongs_to_both() -> None:
    assert environment_of(0, {"PHALANX_JOB": "outer"})["PHALANX_JOB"] == "outer/t0k3n"


def test_threads_that_were_asked_for_are_more_than_what_is_inherited() -> None:
    assert environment_of(0, {"OMP_NUM_THREADS": "8"}, omp_threads=3)["OMP_NUM_THREADS"] == "3"
    assert environment_of(0, {}, nproc=1, omp_threads=3)["OMP_NUM_THREADS"] == "3"


def test_a_worker_gets_the_users_variables_but_for_those_that_tell_it_its_place() -> None:
    env = {"RANK": "77", "LOCAL_RANK": "77", "COLOUR": "blue", "OMP_NUM_THREADS": "6"}
    found = environment_of(1, {}, env=env)
    assert (found["RANK"], found["LOCAL_RANK"]) == ("9", "1")
    assert (found["COLOUR"], found["OMP_NUM_THREADS"]) == ("blue", "6")


def test_a_virtual_local_rank_is_0_and_the_true_one_is_told_beside_it() -> None:
    mask = DeviceMask({"CUDA_VISIBLE_DEVICES": ("3", "5", "7", "9")}, True)
    found = environment_of(2, {"CUDA_VISIBLE_DEVICES": "3,5,7,9"}, devices=mask)
    assert (found["LOCAL_RANK"], found["RANK"], found["PHALANX_LOCAL_RANK"]) == ("0", "10", "2")
    assert found["CUDA_VISIBLE_DEVICES"] == "7"


def test_devices_change_no_rank() -> None:
    found = environment_of(2, {}, devices=DeviceMask({"CUDA_VISIBLE_DEVICES": ("3", "5")}, False))
    assert (found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("2", "3,5")
    assert "PHALANX_LOCAL_RANK" not in found


def test_a_job_inside_a_virtual_rank_does_not_take_its_number_for_its_own() -> None:
    assert environment_of(1, {"PHALANX_LOCAL_RANK": "3"})["PHALANX_LOCAL_RANK"] == "1"


def test_an_agent_without_a_channel_tells_no_more_than_the_round() -> None:
    settled = Round(
        number=1,
        restart_count=0,
        reason="",
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=1,
        world_size=1,
        master_addr="h",
        master_port=1,
    )
    inherited = {"PHALANX_JOB": "outer", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR2"}
    told = worker_environment(inherited, settled, 0, role="r", run_id="j", max_restarts=0)
    assert not told.keys() & {
        "PHALANX_AGENT",
        "PHALANX_JOB",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "OMP_NUM_THREADS",
    }
