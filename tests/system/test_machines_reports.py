"""Every node of a failed job tells the same: which failure was first, on which host, of what."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import Script, has_ended
from tests.system.machines import LONG_LEASE, Agent, Agents, Network, begin_together, c10d

MEMBER = "from meeting import attend; attend()"
# Takes one order more: to end at once, without a word.
SILENT = """
    import os, time
    import meeting

    meeting.begin()
    while True:
        text = meeting.order()
        if text == "vanish":
            meeting.tell("vanishing")
            os._exit(3)
        if text:
            meeting.obey(text)
        time.sleep(0.05)
"""
FILES = ("--error-file", "error.json", "--report-file", "report.json")


def report_of(agent: Agent) -> str:
    """From the block on, without the line on this node's own logs."""
    text = agent.stderr.decode()
    report = text[text.index("\n====") :]
    assert report.count("phalanx: logs of this node: ") <= 1
    return re.sub(r"phalanx: logs of this node: .*\n", "", report)


def last_line(agent: Agent) -> str:
    return agent.stderr.decode().splitlines()[-1]


def written(agent: Agent, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((agent.folder / name).read_text())
    node = data.pop("node", {"host": agent.host.name})
    assert node["host"] == agent.host.name
    return data


def assert_same_on_all(agents: list[Agent]) -> None:
    for agent in agents[1:]:
        assert report_of(agent) == report_of(agents[0])
        for name in ("error.json", "report.json"):
            assert written(agent, name) == written(agents[0], name)


def test_all_nodes_and_a_spare_print_the_same_report_and_leave_the_same_files(
    network: Network, agents: Agents, script: Script, tmp_path: Path
) -> None:
    a, b, c = (network.host(number) for number in (1, 2, 3))
    arguments = (*c10d(a, "2"), "--nproc-per-node", 2, *FILES, script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    begin_together(members, world=4)
    spare = agents(c, *arguments)
    spare.printed("this one waits for another round")
    everyone = [*members, spare]

    network.order("raise bad batch 17", b)

    assert [agent.wait() for agent in everyone] == [1, 1, 1]
    obeying = members[1].until("obeying")
    for agent in everyone:
        report = report_of(agent)
        assert "host      : n2" in report
        assert f"rank      : {obeying.rank} (local_rank: {obeying.rank % 2})" in report
        assert "  RuntimeError: bad batch 17" in report, "the traceback"
        assert f"failed: rank {obeying.rank} on n2: RuntimeError: bad batch 17 at " in last_line(agent)
        others = sorted({0, 1, 2, 3} - {obeying.rank})
        told = re.search(r"stopped because of it: ranks (.*)\n", report)
        assert told is not None
        assert _ranks(told[1]) == others
        data = written(agent, "report.json")
        assert data["first_failure"]["host"] == "n2"
        assert data["stopped_ranks"] == others
        error = written(agent, "error.json")["message"]
        assert (error["message"], error["errorCode"]) == ("RuntimeError: bad batch 17", 1)
        assert (error["extraInfo"]["host"], error["extraInfo"]["rank"]) == ("n2", obeying.rank)
    assert_same_on_all(everyone)
    for agent in members:
        (left,) = agent.temp.glob("torchelastic_*/*/report.json")
        assert json.loads(left.read_text())["first_failure"]["host"] == "n2"
        assert f"logs of this node: {left.parent}" in agent.stderr.decode()


def _ranks(text: str) -> list[int]:
    ends = [one.split("-") for one in text.split(", ")]
    return [rank for one in ends for rank in range(int(one[0]), int(one[-1]) + 1)]


def test_a_silent_death_on_another_node_is_told_with_its_signal_and_last_words(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b, c = (network.host(number) for number in (1, 2, 3))
    train = """
        import os, sys
        import meeting
        meeting.begin()
        sys.stderr.write("weights are \\x1b[31mNaN\\x1b[0m\\x07\\n")
        while not meeting.order():
            meeting.time.sleep(0.05)
        os.kill(os.getpid(), 11)
    """
    members = [agents(host, *c10d(a, "3"), *FILES, script(train)) for host in (a, b, c)]
    begin_together(members, world=3)

    network.order("now", c)

    assert [agent.wait() for agent in members] == [139] * 3
    for agent in members:
        report = report_of(agent)
        assert "(SIGSEGV)" in report
        assert "  weights are NaN\\x07\n" in report
        assert "Segmentation fault" in report, "the stack that faulthandler wrote"
        assert "phalanx: stopped because of it: rank" in report
        assert " on n3: killed by SIGSEGV" in last_line(agent)
        assert written(agent, "error.json")["message"]["errorCode"] == 139
    assert_same_on_all(members)


def test_a_symptom_that_is_seen_first_yields_to_the_failure_behind_it_on_another_node(
    network: Network, agents: Agents, script: Script
) -> None:
    """The agent of the node that failed comes late: the other's broken connection is in the store long before."""
    a, b = network.host(1), network.host(2)
    members = [agents(host, *c10d(a, "2", **LONG_LEASE), *FILES, script(SILENT)) for host in (a, b)]
    begin_together(members, world=2)
    members[1].freeze()
    network.order("vanish", b)
    assert has_ended(members[1].until("vanishing").pid)  # or its agent would stop it, when it goes on
    network.order("raise Connection reset by peer", a)
    members[0].printed("Connection reset by peer")
    members[0].until("obeying")

    members[1].thaw()

    assert [agent.wait() for agent in members] == [3, 3]
    for agent in members:
        assert " on n2: exit code 3" in last_line(agent)
        assert "RuntimeError: Connection reset by peer" in report_of(agent).partition("Root Cause")[0]
    assert_same_on_all(members)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_peers_whose_collective_broke_are_not_blamed(
    network: Network, agents: Agents, script: Script
) -> None:
    """One of three processes of gloo dies silently: the exceptions of the others are recorded, its end is only seen."""
    train = """
        import os
        import torch, torch.distributed as dist
        import meeting

        meeting.begin()
        dist.init_process_group("gloo")
        meeting.tell("ready")
        while True:
            dist.all_reduce(torch.ones(1))
            if os.path.exists(f"{meeting.SHARED}/orders/{meeting.HOST}"):
                os._exit(3)
    """
    hosts = [network.host(number) for number in (1, 2, 3)]
    members = [agents(host, *c10d(hosts[0], "3"), *FILES, script(train)) for host in hosts]
    for member in members:
        member.until("ready")

    network.order("die", hosts[1])

    assert [agent.wait() for agent in members] == [3, 3, 3]
    for agent in members:
        assert " on n2: exit code 3" in last_line(agent)
    assert_same_on_all(members)


def test_what_was_restarted_before_is_told_on_every_node(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    members = [agents(host, *c10d(a, "2"), "--max-restarts", 1, *FILES, script(MEMBER)) for host in (a, b)]
    before = begin_together(members, world=2)
    network.order("exit 5", a)
    begin_together(members, world=2, newer_than=before)

    network.order("exit 7", b)

    assert [agent.wait() for agent in members] == [7, 7]
    for agent in members:
        lines = report_of(agent).splitlines()
        assert "phalanx: restarted 1 time before:" in lines
        assert "exit code 5" in lines[lines.index("phalanx: restarted 1 time before:") + 1]
        assert lines[-2].startswith("phalanx: not restarted: ")
        data = written(agent, "report.json")
        assert (data["restart_count"], len(data["restarts"]), data["exit_code"]) == (1, 1, 7)
    assert_same_on_all(members)


def test_a_job_that_succeeds_leaves_its_report_where_it_was_asked_for(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    members = [agents(host, *c10d(a, "2"), *FILES, script(MEMBER)) for host in (a, b)]
    begin_together(members, world=2)

    network.order("exit 0")

    assert [agent.wait() for agent in members] == [0, 0]
    for agent in members:
        data = written(agent, "report.json")
        assert (data["ending"], data["exit_code"], data["first_failure"]) == ("succeeded", 0, None)
        assert not (agent.folder / "error.json").exists()
