"""Each flag of torchrun on a real job under both launchers, given as a flag and as its variable.

Starting torchrun takes seconds, so a job has as many flags as can be told apart by what workers find and leave. Flags
whose effect needs more are shown beside what they are about: logs, failures, nodes, devices. That each variable gives
the value that torchrun's own parser reads is shown in tests/cli/test_torchrun_parser.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from tests.side_by_side.pair import Seen, SideBySide, shows
from tests.side_by_side.test_worker_environment import PROBE, environments, places
from tests.system.launch import WORKER_SIDE, two_free_ports


def variables_of(flags: Iterable[str]) -> list[str]:
    return ["PET_" + flag.removeprefix("--").replace("-", "_").upper() for flag in flags]


SOURCE = """
    import os, sys
    from telling import tell

    os.write(1, b"out of %b\\n" % os.environb[b"RANK"])
    os.write(2, b"err of %b\\n" % os.environb[b"RANK"])
    tell("environment", **{name: text for name, text in os.environ.items() if not name.startswith("PET_")})
    # The other rank has its say in any case: it is not stopped before it has written.
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        import time
        while not os.path.exists("0-written") and os.environ["RANK"] == "1":
            time.sleep(0.01)
        open(f"{os.environ['RANK']}-written", "w").close()
        while not os.path.exists("1-written"):
            time.sleep(0.01)
        sys.exit(3)
"""
ON_ONE_NODE = {
    "--nnodes": "1:1",
    "--nproc-per-node": "2",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "localhost:0",
    "--rdzv-id": "job-7",
    "--local-addr": "127.0.0.2",
    "--rdzv-conf": "join_timeout=77,last_call_timeout=1",
    "--max-restarts": "1",
    "--monitor-interval": "0.2",
    "--start-method": "fork",
    "--event-log-handler": "null",
    "--role": "trainer",
    "--log-dir": "logs",
    "--redirects": "0:1",
    "--tee": "1:3",
    "--local-ranks-filter": "1",
    "--duplicate-stdout-filters": "out of 1",
    "--duplicate-stderr-filters": "err",
    "--signals-to-handle": "SIGTERM",
    "--shutdown-timeout": "7",
}


# What workers find, what is shown and which files there are depend on these.
SEEN = (
    *(
        "--nproc-per-node",
        "--rdzv-id",
        "--local-addr",
        "--max-restarts",
        "--role",
        "--log-dir",
        "--redirects",
    ),
    *("--tee", "--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"),
)


@shows("same", *(f"flag {flag}" for flag in SEEN), *(f"variable {name}" for name in variables_of(SEEN)))
@shows(
    "better",
    "flag --monitor-interval",
    how="accepted, of no effect: an exit is an event, and nothing is polled",
)
@shows(
    "same",
    "flag --start-method",
    how="accepted, of no effect on programs, as there: it is for functions",
)
@pytest.mark.parametrize("way", ["flags", "variables"])
def test_a_job_with_all_flags_of_one_node(side_by_side: SideBySide, way: str) -> None:
    flags = [word for pair in ON_ONE_NODE.items() for word in pair] if way == "flags" else []
    env = (
        dict(zip(variables_of(ON_ONE_NODE), ON_ONE_NODE.values(), strict=True)) if way == "variables" else {}
    )

    torchrun, phalanx = side_by_side(SOURCE, *flags, env=env, log_dir=False)

    assert phalanx.code == torchrun.code == 0, (torchrun.stderr, phalanx.stderr)
    assert _told(phalanx) == _told(torchrun)
    assert [one["TORCHELASTIC_RESTART_COUNT"] for one in _told(phalanx)] == ["0", "0", "1", "1"]
    assert {
        (one["ROLE_NAME"], one["TORCHELASTIC_MAX_RESTARTS"], one["TORCHELASTIC_RUN_ID"], one["MASTER_ADDR"])
        for one in _told(phalanx)
    } == {("trainer", "1", "job-7", "127.0.0.2")}
    assert {one["TORCHELASTIC_SIGNALS_TO_HANDLE"] for one in _told(phalanx)} == {"SIGTERM"}
    ours_alone = {path for path in phalanx.log_files() if path.endswith("error.json")}  # of sys.exit(3)
    assert phalanx.log_files() - ours_alone == torchrun.log_files()
    # The rank that ends second may be stopped before it has said why.
    assert set() < ours_alone <= {f"job-7_*/attempt_0/{rank}/error.json" for rank in (0, 1)}
    assert {"job-7_*/attempt_0/0/stdout.log", "job-7_*/attempt_1/0/stdout.log"} <= phalanx.log_files()
    assert sorted(_console(phalanx.stdout)) == sorted(_console(torchrun.stdout))
    assert sorted(_console(phalanx.stderr)) == sorted(_console(torchrun.stderr))
    assert b"[trainer1]:err of 1" in phalanx.stderr.splitlines()
    for theirs in torchrun.logs.rglob("*.log"):
        (ours,) = phalanx.logs.glob("job-7_*/" + "/".join(theirs.relative_to(torchrun.logs).parts[1:]))
        assert sorted(ours.read_bytes().splitlines()) == sorted(theirs.read_bytes().splitlines())


def _told(seen: Seen) -> list[dict[str, Any]]:
    """What each worker of each attempt found, of the names that a flag has an effect on."""
    prefixes = ("LOCAL_", "RANK", "GROUP_", "ROLE_", "WORLD_SIZE", "TORCHELASTIC_", "OMP_", "MASTER_ADDR")
    apart = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
    return [
        {name: text for name, text in event.facts.items() if name.startswith(prefixes) and name not in apart}
        for event in seen.told("environment")
    ]


def _console(output: bytes) -> list[bytes]:
    return [
        line for line in output.splitlines() if b" of " in line and (b"out of" in line or b"err of" in line)
    ]


@shows("same", "flag --standalone", "variable PET_STANDALONE")
@shows(
    "better",
    "variable PET_STANDALONE",
    how="every usual spelling of yes and no is read; there true is a traceback",
)
def test_a_job_that_stands_alone_by_a_variable_and_has_an_interpreter_of_its_own(
    side_by_side: SideBySide,
) -> None:
    interpreter = side_by_side.folder / "python-of-mine"
    interpreter.write_text(f'#!/bin/sh\nMINE=1 exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    env = {"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ENDPOINT": "no-such-host:1"}

    for seen in side_by_side(PROBE, env={**env, "PYTHON_EXEC": str(interpreter)}):
        assert [(one["WORLD_SIZE"], one["MINE"]) for one in environments(seen)] == [("2", "1"), ("2", "1")]


TELL_KIND = """
    import os, sys
    from telling import tell

    tell("kind", name=__name__, argv=sys.argv, package=__package__, file=__file__, rank=os.environ["LOCAL_RANK"])
"""
# A program that is no Python: it tells with the help of one.
SHELL = """\
#!/bin/sh
exec "$PYTHON" -c "$TELL" "$@"
"""
TELL = "import sys; from telling import tell; tell('kind', argv=sys.argv[1:])"


@shows("same", "flag --module", "flag --no-python", "variable PET_NO_PYTHON")
@shows(
    "better",
    "flag --run-path",
    how="the script is a program of its own there, too, and no function in a copy of the launcher",
)
@pytest.mark.parametrize(
    ("flag", "env"),
    [
        ("-m", {}),
        ("--no-python", {}),
        ("--run-path", {"PET_NO_PYTHON": "1"}),
    ],
    ids=str,
)
def test_each_kind_of_program(side_by_side: SideBySide, flag: str, env: dict[str, str]) -> None:
    """A module, a program that is no Python, and torchrun's --run-path, which is stronger than the latter."""
    folder = side_by_side.folder
    program = folder / "program.sh"
    program.write_text(SHELL)
    program.chmod(0o755)
    is_module, is_path = flag == "-m", flag == "--run-path"
    named = "train" if is_module else str(folder / "train.py" if is_path else program)
    path = os.pathsep.join([str(folder), str(WORKER_SIDE)])

    torchrun, phalanx = side_by_side(
        TELL_KIND,
        *("--standalone", flag),
        named=(named,),
        arguments=("x", "--y", "${local_rank}"),
        env={"PYTHONPATH": path, "PYTHON": sys.executable, "TELL": TELL, **env},
    )

    assert phalanx.code == torchrun.code == 0, (torchrun.stderr, phalanx.stderr)
    theirs, ours = (dict(seen.told("kind")[0].facts) for seen in (torchrun, phalanx))
    if is_path:  # runpy's, where it is python's here
        assert (theirs.pop("package"), ours.pop("package")) == ("", None)
    assert ours == theirs
    assert ours["argv"][-3:] == ["x", "--y", "0"]


@shows("same", "flag --rdzv-conf")
def test_the_configuration_of_the_meeting_ends_a_wait_for_a_node_that_does_not_come(
    side_by_side: SideBySide,
) -> None:
    """By default both wait for 600 s, which is longer than a job may take here."""
    endpoint = f"localhost:{two_free_ports()}"
    meeting = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    # It limits how long the store is looked for, too, which is there at once but for a machine that stands still.
    torchrun, phalanx = side_by_side(PROBE, *meeting, "--rdzv-conf", "join_timeout=3,last_call_timeout=1")
    assert (torchrun.code, phalanx.code) == (1, 75)
    assert b"RendezvousTimeoutError" in torchrun.stderr
    assert b"after 3 s (join_timeout)" in phalanx.stderr
    assert not torchrun.events + phalanx.events


@shows("same", "variable PET_NODE_RANK", "variable PET_MASTER_ADDR", "variable PET_MASTER_PORT")
def test_nodes_meet_by_variables_alone(side_by_side: SideBySide) -> None:
    """As operators of clusters start torchrun: without a flag."""
    env = [
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": str(node + 1),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": "{port}",
        }
        for node in range(2)
    ]
    torchrun, phalanx = side_by_side.nodes(PROBE, (), (), env=env)
    assert places(phalanx) == places(torchrun)
    assert len(places(phalanx)) == 3


LISTENER = """
    import signal, sys, time
    from telling import tell

    def leave(number, frame):
        tell("asked", signal=number)
        sys.exit(0)

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, leave)
    tell("ready")
    while True:
        time.sleep(0.05)
"""


@shows("better", "flag --signals-to-handle", how="SIGUSR1 and SIGUSR2 warn, and stop nothing")
@shows(
    "better",
    "variable TORCHELASTIC_SIGNALS_TO_HANDLE",
    how="told to workers alike; no context takes handlers over",
)
def test_signals_of_the_list_stop_the_job_and_workers_get_that_very_signal(side_by_side: SideBySide) -> None:
    flags = ("--standalone", "--signals-to-handle", "SIGHUP,NOSUCH")
    env = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM"}  # the launcher's word is stronger, in both
    torchrun, phalanx = side_by_side(LISTENER, *flags, env=env, stop_at="ready", signal=signal.SIGHUP)

    for seen in torchrun, phalanx:
        assert [event["signal"] for event in seen.told("asked")] == [signal.SIGHUP]
    assert (torchrun.code, phalanx.code) == (1, 129)
