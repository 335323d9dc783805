"""A worker finds the same environment under both launchers; each difference is listed here, and meant."""

from __future__ import annotations

import re

import pytest
from tests.side_by_side.pair import Seen, SideBySide, shows
from tests.system.launch import launcher_under_test, two_free_ports

PROBE = """
    import os
    from telling import tell

    tell("environment", **os.environ)
"""

# Of the harness: differ between any two jobs.
HARNESS = {"BLACK_BOX_TOKEN", "BLACK_BOX_PIPE", "TMPDIR", "PWD", "OLDPWD", "_", "PYTEST_CURRENT_TEST"}

# Different in each run of either launcher, with the form that the value must have.
RANDOM = {
    "MASTER_PORT": r"\d{4,5}",
    "TORCHELASTIC_RUN_ID": r"[0-9a-f-]+",
    "TORCHELASTIC_ERROR_FILE": r".*/logs/\S+_[A-Za-z0-9_]{8}/attempt_0/\d/error\.json",
}

OTHER_VALUE = {
    # Rank 0 of the job hosts its own store: torchrun's shared one breaks after restarts.
    "TORCHELASTIC_USE_AGENT_STORE": ("True", "False"),
    # An address needs no name server, and names one family of sockets.
    "MASTER_ADDR": ("localhost", "127.0.0.1"),
}

# Ours, and what they are for: the job's mark, the worker channel, the round and why it began.
ONLY_OURS = {"PHALANX_JOB", "PHALANX_AGENT", "PHALANX_ROUND", "PHALANX_RESTART_REASON"}

Environment = dict[str, str]


def environments(seen: Seen) -> list[Environment]:
    """Of each rank, without what the harness and chance put in."""
    assert seen.code == 0, seen.stderr
    return [
        {name: value for name, value in event.facts.items() if name not in HARNESS}
        for event in seen.told("environment")
    ]


def differences(torchrun: Environment, phalanx: Environment) -> dict[str, tuple[str | None, str | None]]:
    names = (torchrun.keys() | phalanx.keys()) - RANDOM.keys() - ONLY_OURS
    pairs = {name: (torchrun.get(name), phalanx.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


FLAGS: dict[str, tuple[str, ...]] = {
    "no flags": (),
    "elastic, with a role": (
        *("--standalone", "--nnodes", "1:1", "--nproc-per-node", "2", "--max-restarts", "3"),
        *("--role", "trainer"),
    ),
}


SAME = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)


@shows(
    "same", *(f"variable {name}" for name in SAME), "flag --standalone", "flag --role", "flag --max-restarts"
)
@shows("better", "variable MASTER_ADDR", how="an address, for which no name server is asked")
@shows(
    "better",
    "variable TORCHELASTIC_USE_AGENT_STORE",
    how="always False: rank 0 hosts a store for its round, and no restart meets keys of an earlier one",
)
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_each_rank_finds_the_same_variables(side_by_side: SideBySide, flags: tuple[str, ...]) -> None:
    seen_torchrun, seen_phalanx = side_by_side(PROBE, *flags)

    torchrun, phalanx = environments(seen_torchrun), environments(seen_phalanx)
    assert len(torchrun) == len(phalanx)
    for theirs, ours in zip(torchrun, phalanx, strict=True):
        assert differences(theirs, ours) == OTHER_VALUE
        assert {name for name in ours if name.startswith("PHALANX_")} == ONLY_OURS
        for name, form in RANDOM.items():
            assert re.fullmatch(form, theirs[name]), (name, theirs[name])
            assert re.fullmatch(form, ours[name]), (name, ours[name])
    for name in "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PHALANX_JOB", "PHALANX_AGENT":
        assert len({ours[name] for ours in phalanx}) == 1, f"all ranks have one {name}"


PLACES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)
STATIC = ("--master-addr", "127.0.0.1", "--master-port", "{port}")
C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:{port}", "--rdzv-id", "job")


def places(seen: list[Seen]) -> list[dict[str, str]]:
    """What the workers of all nodes know of their places, by local world size (the order of nodes may be chance)."""
    found = [environment for one in seen for environment in environments(one)]
    found.sort(key=lambda one: (one["LOCAL_WORLD_SIZE"], one["LOCAL_RANK"]))
    return [{name: environment[name] for name in PLACES} for environment in found]


@shows("same", "flag --nnodes", "flag --node-rank", "flag --master-addr", "flag --master-port", "flag --role")
def test_workers_of_two_numbered_nodes_find_the_same_places(side_by_side: SideBySide) -> None:
    """Nodes of different sizes and roles: ranks within a role are counted over the nodes that have it."""
    both = ("--nnodes", 3, *STATIC, "--max-restarts", 2)

    torchrun, phalanx = side_by_side.nodes(
        PROBE,
        (*both, "--node-rank", 0, "--nproc-per-node", 1, "--role", "trainer"),
        (*both, "--node-rank", 1, "--nproc-per-node", 2, "--role", "reader"),
        (*both, "--node-rank", 2, "--nproc-per-node", 3, "--role", "trainer"),
    )

    assert places(phalanx) == places(torchrun)
    for seen in torchrun, phalanx:
        assert_one_world([environment for one in seen for environment in environments(one)])


def assert_one_world(found: list[Environment]) -> None:
    for name in "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID":
        assert len({one[name] for one in found}) == 1, f"all nodes have one {name}"


@shows("same", "flag --rdzv-backend", "flag --rdzv-endpoint", "flag --rdzv-id")
def test_two_equal_nodes_make_one_world(side_by_side: SideBySide) -> None:
    nodes = [("--nnodes", 2, "--nproc-per-node", 2, "--node-rank", rank, *C10D) for rank in range(2)]

    for seen in side_by_side.nodes(PROBE, *nodes):
        found = [environment for one in seen for environment in environments(one)]
        assert sorted(int(one["RANK"]) for one in found) == [0, 1, 2, 3]
        assert sorted((int(one["GROUP_RANK"]), int(one["LOCAL_RANK"])) for one in found) == [
            (node, rank) for node in range(2) for rank in range(2)
        ]
        assert_one_world(found)


def test_a_static_job_gets_the_master_address_and_port_that_were_asked_for(side_by_side: SideBySide) -> None:
    port = two_free_ports()
    flags = (
        "--nproc-per-node",
        2,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
        "--rdzv-id",
        "job-7",
    )

    for seen in side_by_side(PROBE, *flags):
        for environment in environments(seen):
            assert environment["MASTER_ADDR"] == "127.0.0.1"
            assert environment["MASTER_PORT"] == str(port)
            assert environment["TORCHELASTIC_RUN_ID"] == "job-7"


@shows("same", "variable OMP_NUM_THREADS", "variable CUDA_VISIBLE_DEVICES")
def test_variables_that_the_user_set_are_kept(side_by_side: SideBySide) -> None:
    env = {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "CUDA_VISIBLE_DEVICES": "2,3"}
    for seen in side_by_side(PROBE, "--standalone", "--nproc-per-node", 2, env=env):
        found = [{name: environment[name] for name in env} for environment in environments(seen)]
        assert found == [env, env]


def test_the_process_of_a_worker_is_the_same_to_its_script(side_by_side: SideBySide) -> None:
    source = """
        import os, resource, signal, sys
        from telling import tell

        tell(
            "process",
            argv=sys.argv[1:],
            orig_argv=sys.orig_argv[1:2],
            path=[entry for entry in sys.path],
            main=[__name__, __file__, repr(__package__), repr(__spec__), __doc__],
            flags=repr(sys.flags),
            unbuffered=[sys.stdout.write_through, sys.stderr.write_through],
            mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            umask=os.umask(0o22),
            nice=os.nice(0),
            files=resource.getrlimit(resource.RLIMIT_NOFILE),
            leads_session=os.getsid(0) == os.getpid(),
            leads_group=os.getpgid(0) == os.getpid(),
            descriptors=sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 3),
        )
        tell("handlers", **{str(n): repr(signal.getsignal(n)) for n in signal.valid_signals() if n < 32})
        # torchelastic makes no folder for it when a script writes it: the launcher must have.
        folder = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
        tell("folder of the error file", mode=oct(os.stat(folder).st_mode & 0o170000))
        """

    torchrun, phalanx = side_by_side(source, "--standalone", arguments=("--lr", "0.1"))

    for event in "process", "handlers", "folder of the error file":
        assert phalanx.told(event)[0].facts == torchrun.told(event)[0].facts
    assert phalanx.told("folder of the error file")[0]["mode"] == "0o40000"


def test_a_worker_has_no_descriptor_of_its_launcher_but_the_one_for_crashes(side_by_side: SideBySide) -> None:
    source = """
        import os
        from telling import tell

        links = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                pass  # the descriptor of listdir itself
        tell("descriptors", beyond_stderr=[link for number, link in sorted(links.items()) if number > 2])
        """

    phalanx = side_by_side.under(
        launcher_under_test(), source, "--standalone", "--nproc-per-node", 2, "-t", 3
    )

    assert len(phalanx.told("descriptors")) == 2
    for event in phalanx.told("descriptors"):
        assert all("crash" in link for link in event["beyond_stderr"]), event
        assert len(event["beyond_stderr"]) <= 1
