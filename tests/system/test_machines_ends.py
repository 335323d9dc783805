"""Case 10: ranks that end at different times, on one node and on several."""

from __future__ import annotations

import re
import signal

import pytest
from tests.system.launch import Launch, Script
from tests.system.machines import Agents, Network, begin_together, c10d

MEMBER = "from meeting import attend; attend()"
# The worker of the first-started node ends after 1 s, the other's after 12 s.
EARLY_AND_LATE = """
    import os, time
    from meeting import begin

    begin()
    time.sleep({"n1": 1, "n2": 12}[os.environ["BLACK_BOX_HOST"]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", [1, 2], ids=["early node serves the store", "late node does"])
def test_the_early_finisher_waits_for_the_other_node(
    network: Network, agents: Agents, script: Script, store: int
) -> None:
    hosts = {number: network.host(number) for number in (1, 2)}
    arguments = (*c10d(hosts[store], "2"), script(EARLY_AND_LATE))
    early, late = agents(hosts[1], *arguments), agents(hosts[2], *arguments)

    assert late.wait() == 0
    assert early.wait() == 0
    assert len(early.told("begun")) == len(late.told("begun")) == 1


def test_a_node_that_dies_after_it_has_succeeded_is_no_loss(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--max-restarts", 0, script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    begin_together(members, world=2)
    network.order("exit 0", b)
    members[1].until("obeying")
    members[1].printed("have succeeded")

    members[1].send(signal.SIGTERM)

    assert members[1].wait() in (0, 143)
    network.order("exit 0", a)
    assert members[0].wait() == 0
    assert len(members[0].told("begun")) == 1


def test_a_failure_after_another_node_has_succeeded_runs_all_again(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--max-restarts", 1, script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    before = begin_together(members, world=2)
    network.order("exit 0", b)
    members[1].until("obeying")

    network.order("exit 3", a)

    begin_together(members, world=2, newer_than=before)
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]


def test_a_newcomer_after_the_first_success_is_a_spare(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b, c = (network.host(number) for number in (1, 2, 3))
    arguments = (*c10d(a, "2:3"), script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    begin_together(members, world=2)
    network.order("exit 0", b)
    members[1].until("obeying")
    members[1].printed("have succeeded")

    newcomer = agents(c, *arguments)
    newcomer.printed("this one waits for another round")

    network.order("exit 0", a)
    assert [member.wait() for member in (*members, newcomer)] == [0, 0, 0]
    assert not newcomer.events


def test_an_exit_barrier_timeout_limits_how_long_the_early_finisher_waits(
    network: Network, agents: Agents, script: Script
) -> None:
    """The late node serves the store, so it does not need the early one."""
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--exit-barrier-timeout", 2, script(MEMBER))
    late, early = agents(a, *arguments), agents(b, *arguments)
    begin_together([late, early], world=2)

    network.order("exit 0", b)

    assert early.wait() == 0
    assert late.process.poll() is None
    network.order("exit 0", a)
    assert late.wait() == 0


STRAGGLERS = """
    import os, time
    from telling import stay, tell

    if os.environ["RANK"] == "1":
        tell("straggling")
        open("straggling", "w").close()
        stay()
    while not os.path.exists("straggling"):  # who has not come so far would be ended before it can tell
        time.sleep(0.01)
"""


def test_a_straggler_is_named_and_ends_the_job(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--straggler-timeout", 1, script(STRAGGLERS))

    assert job.wait() == 1
    assert "rank      : 1" in job.summary
    (straggling,) = job.told("straggling")
    assert straggling.rank == 1


@pytest.mark.parametrize(
    ("on_term", "code"),
    [
        ("signal.SIG_DFL", 1),
        ("signal.SIG_IGN", 1),
        ("lambda *_: sys.exit(0)", 1),
        ("lambda *_: sys.exit(1)", 1),
        ("lambda *_: sys.exit(7)", 7),
        ("lambda *_: os._exit(0)", 1),
        ("lambda *_: 1 / 0", 1),
    ],
)
def test_all_stragglers_are_named_and_the_code_is_one_whatever_our_signal_did_to_them(
    launch: Launch, script: Script, on_term: str, code: int
) -> None:
    train = script(
        f"""
        import os, signal, sys, time
        from telling import stay, tell

        if os.environ["RANK"] == "0":
            while not (os.path.exists("ready1") and os.path.exists("ready2")):
                time.sleep(0.01)
            sys.exit(0)
        signal.signal(15, {on_term})
        open("ready" + os.environ["RANK"], "w").close()
        stay()
        """
    )
    # Python needs time to end, and only who ignores our signal is to be killed for it.
    grace_s = 1 if on_term == "signal.SIG_IGN" else 60
    limits = ("--straggler-timeout", "1s", "--shutdown-timeout", grace_s)

    job = launch("--standalone", "--nproc-per-node", 3, *limits, train)

    assert job.wait() == code
    last = job.stderr.decode().splitlines()[-1]
    still = "still ran 1 s after others had ended: stopped for that (--straggler-timeout)"
    assert last.endswith(f"failed: ranks 1, 2 {still} (exit code {code})")
    assert {int(rank) for rank in re.findall(r"rank +: (\d+)", job.summary)} == {1, 2}
    assert f"exitcode  : {code} " in job.summary
    for word in ("SIGTERM", "SIGKILL", "Signal ", "killed", "ended with code 0"):
        assert word not in job.summary


def test_without_a_straggler_timeout_the_others_are_waited_for(launch: Launch, script: Script) -> None:
    train = script("import os, time; time.sleep(8 * int(os.environ['RANK']))")
    job = launch("--standalone", "--nproc-per-node", 2, train)

    assert job.wait() == 0


def test_all_that_still_run_are_named_when_some_of_a_node_have_ended(
    network: Network, agents: Agents, script: Script
) -> None:
    """A signal handler of one rank that calls `exit(0)` leaves the others waiting in a collective, on all nodes."""
    train = script(
        """
        import os, sys
        from meeting import begin
        from telling import stay

        begin()
        if os.environ["RANK"] == "0":
            sys.exit(0)
        stay()
        """
    )
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--nproc-per-node", 2, "--straggler-timeout", 3, train)
    members = [agents(host, *arguments) for host in (a, b)]

    assert [member.wait() for member in members] == [1, 1]
    for member in members:
        named = {int(rank) for rank in re.findall(r"rank +: (\d+)", member.summary)}
        assert named == {1, 2, 3}
        assert "failed: ranks 1-3 still ran 3 s after others had ended" in member.summary


def test_a_straggler_on_another_node_is_named_on_both(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--straggler-timeout", 3, script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    begin_together(members, world=2)
    straggler = members[0].told("begun")[0].rank

    network.order("exit 0", b)

    codes = [member.wait() for member in members]
    assert codes[0] == codes[1] != 0
    for member in members:
        assert f"rank      : {straggler}" in member.summary
