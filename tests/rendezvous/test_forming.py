"""How rounds come about: the first one, the next ones, who is in them and in which order, and who waits."""

from __future__ import annotations

import pytest
from tests.rendezvous.fleet import Fleet

from phalanx.rendezvous.settings import Growth


def test_a_first_round_settles_at_once_when_as_many_as_allowed_are_there() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c", number=1, within_s=0.1)


def test_a_first_round_between_min_and_max_waits_for_the_last_call() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=4, last_call_s=20.0)
    fleet.start("a", "b")
    fleet.run(19.9)
    assert fleet["a"].round is None
    fleet.run_until_running("a", "b", within_s=0.2)


def test_the_last_call_begins_when_min_are_there_and_arrivals_do_not_prolong_it() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=5, last_call_s=20.0)
    fleet.start("a")
    fleet.run(100)
    fleet.start("b")
    for name in ("c", "d"):
        fleet.run(9)
        fleet.start(name)
    fleet.run_until_running("a", "b", "c", "d", within_s=2.1)


def test_a_last_call_is_cancelled_when_too_few_are_left_and_begins_anew() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=4, last_call_s=20.0)
    fleet.start("a", "b")
    fleet.run(19)
    fleet.leave("b")
    fleet.run(100)
    assert fleet["a"].round is None
    fleet.start("c")
    fleet.run(19.9)
    assert fleet["a"].round is None
    fleet.run_until_running("a", "c", within_s=0.2)


def test_a_later_round_needs_no_last_call_when_all_who_are_there_are_ready() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=9, max_restarts=1, last_call_s=20.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.fail("a")
    fleet.run_until_running("a", "b", "c", number=2, within_s=1.0)


def test_newcomers_are_gathered_for_one_last_call_from_the_first_of_them() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=6, last_call_s=20.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.start("c")
    fleet.run(15)
    fleet.start("d")
    fleet.run(4.9)
    assert fleet.record.number == 1
    grown = fleet.run_until_running("a", "b", "c", "d", number=2, within_s=2.0)
    assert grown.reason == "2 nodes joined: c, d"
    assert grown.restart_count == 0


def test_newcomers_are_not_waited_for_when_they_make_the_round_full() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=20.0)
    fleet.start("a")
    fleet.run_until_running("a")
    fleet.start("b")
    grown = fleet.run_until_running("a", "b", within_s=1.0)
    assert grown.reason == "a node joined: b"


def test_a_newcomer_that_goes_again_interrupts_nobody() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=4, last_call_s=20.0)
    fleet.start("a")
    fleet.run_until_running("a")
    fleet.start("b")
    fleet.run(10)
    fleet.leave("b")
    fleet.run(100)
    assert fleet["a"].formed == [fleet["a"].round]


def test_a_job_that_grows_only_at_checkpoints_waits_for_one() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3, last_call_s=20.0, growth=Growth.AT_CHECKPOINT)
    fleet.start("a")
    fleet.run_until_running("a")
    fleet.checkpoint("a", 1)
    fleet.start("b")
    fleet.run(500)
    assert fleet.record.number == 1, "a checkpoint before the newcomer came does not count"
    (wanted,) = fleet["a"].checkpoints_wanted
    assert wanted.reason == "a node joined: b", "workers are asked, and once"
    fleet.checkpoint("a", 2)
    fleet.run_until_running("a", "b", number=2, within_s=1.0)


def test_a_job_that_does_not_grow_takes_newcomers_only_in_place_of_others() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, growth=Growth.NEVER)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.start("c")
    fleet.run(500)
    assert fleet.record.number == 1
    fleet.kill("b")
    fleet.run_until_running("a", "c", number=2, within_s=20.0)


def test_below_min_the_others_wait_for_a_replacement() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, join_timeout_s=300.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.kill("b")
    fleet.run(200)
    assert fleet["a"].round is None
    fleet.start("c")
    again = fleet.run_until_running("a", "c", within_s=1.0)
    assert (again.number, again.restart_count, again.reason) == (2, 0, "node b was lost")


def test_below_min_for_too_long_the_job_ends_with_75_and_names_who_is_here() -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3, join_timeout_s=300.0)
    fleet.start("a", "b")
    assert fleet.run_until_over(within_s=310.0) == {75}
    assert fleet.now == pytest.approx(1300.0, abs=1)
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert verdict.reason == "2 of 3 nodes are ready (a, b); 1 more needed, after 300 s (join_timeout)"


def test_who_waits_is_told_who_is_here_who_is_lost_and_when_it_ends() -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3, join_timeout_s=300.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.kill("c")
    fleet.run(60)
    for name in ("a", "b"):
        (line,) = [one for one in fleet[name].said if one.startswith("waiting")]
        assert line == "waiting: 2 of 3 nodes are ready (a, b); gone: c; 1 more needed; gives up in 295 s"


def test_waiting_lines_are_rare_although_nodes_arrive_all_the_time() -> None:
    fleet = Fleet(min_nodes=30, max_nodes=30, join_timeout_s=300.0)
    for number in range(29):
        fleet.start(f"n{number}")
        fleet.run(1)
    fleet.run(100)
    told = [one for one in fleet["n0"].said if one.startswith("waiting")]
    assert 3 <= len(told) <= 5
    assert "29 of 30 nodes are ready (n0, n1, n10, " in told[-1]
    assert "and 21 more" in told[-1]


def test_spares_wait_without_a_limit_step_in_and_end_with_the_job() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, join_timeout_s=60.0)
    fleet.start("a", "b", "c", "d")
    fleet.run_until_running("a", "b")
    fleet.run(1000)
    assert not fleet["c"].is_over
    fleet.kill("a")
    second = fleet.run_until_running("b", "c", number=2, within_s=16.0)
    assert second.group_rank == 0, "the old member keeps its place before the newcomer"
    fleet.finish("b", "c")
    assert fleet.run_until_over(within_s=1.0) == {0}
    assert fleet["d"].formed == []


def test_a_node_that_came_while_a_round_was_full_is_told_that_it_is_a_spare() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b", "c")
    fleet.run(5)
    spare = next(one for one in fleet.agents.values() if one.round is None)
    assert spare.said == ["round 1 has its 2 nodes; this one waits for another round"]
    assert not spare.holds_port


def test_ranks_follow_the_hint_then_the_topology_then_the_natural_order_of_addresses() -> None:
    fleet = Fleet(min_nodes=5, max_nodes=5)
    fleet.start("a", address="10.0.0.10")
    fleet.start("b", address="10.0.0.9")
    fleet.start("c", address="10.0.0.11", topology="rack 1")
    fleet.start("d", address="10.0.0.12", order_hint=7)
    fleet.start("e", address="10.0.0.99", order_hint=3)
    fleet.run_until_running("a", "b", "c", "d", "e")
    ranks = {one.name: one.round.group_rank for one in fleet.agents.values() if one.round is not None}
    assert sorted(ranks, key=lambda name: ranks[name]) == ["e", "d", "b", "a", "c"]


def test_members_keep_their_order_and_newcomers_follow() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=5.0)
    fleet.start("b", address="10.0.0.5")
    fleet.start("c", address="10.0.0.6")
    fleet.run_until_running("b", "c")
    fleet.start("a", address="10.0.0.1")
    fleet.run_until_running("a", "b", "c", number=2)
    ranks = {one.name: one.round.group_rank for one in fleet.agents.values() if one.round is not None}
    assert ranks == {"b": 0, "c": 1, "a": 2}


def test_nodes_with_different_numbers_of_workers_share_the_ranks() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", slots=3, order_hint=0)
    fleet.start("b", slots=2, order_hint=1)
    fleet.run_until_running("a", "b")
    first, second = fleet["a"].round, fleet["b"].round
    assert first is not None
    assert second is not None
    assert (first.first_rank, second.first_rank, first.world_size) == (0, 3, 5)


def test_the_master_is_rank_0_with_the_port_that_it_holds() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", order_hint=1)
    fleet.start("b", order_hint=0)
    formed = fleet.run_until_running("a", "b")
    assert formed.master_addr == fleet["b"].address
    assert formed.master_port == fleet["b"].port
    assert fleet["b"].holds_port


def test_what_the_user_says_of_the_master_goes_to_the_workers_as_given() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, master_addr="head.example", master_port=29511)
    fleet.start("a", "b")
    formed = fleet.run_until_running("a", "b")
    assert (formed.master_addr, formed.master_port) == ("head.example", 29511)


def test_static_ranks_are_the_hints_whoever_was_there_before() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, is_static=True, max_restarts=1)
    fleet.start("one", order_hint=1)
    fleet.start("zero", order_hint=0)
    fleet.run_until_running("zero", "one", number=1)
    fleet.fail("one")
    second = fleet.run_until_running("zero", "one", number=2)
    assert second.group_rank == 0


def test_of_two_agents_with_one_node_rank_the_second_is_refused_once_the_first_is_seen_to_live() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, is_static=True)
    fleet.start("a", node_id="rank 0", order_hint=0)
    fleet.start("twin", node_id="rank 0", order_hint=0)
    fleet.run_until(lambda: fleet["twin"].is_over, within_s=60.0)
    verdict = fleet["twin"].verdict
    assert verdict is not None
    assert verdict.exit_code == 2
    assert verdict.reason == (
        "another agent, on a, has the node rank 0 of this job; each node needs a --node-rank of its own"
    )
    assert not fleet["a"].is_over


def test_an_agent_that_was_killed_is_replaced_under_its_name_when_its_lease_is_over() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", node_id="rank 0", order_hint=0)
    fleet.start("b", node_id="rank 1", order_hint=1)
    fleet.run_until_running("a", "b")
    fleet.kill("b")
    fleet.start("b again", node_id="rank 1", order_hint=1)
    second = fleet.run_until_running("a", "b again", within_s=20.0)
    assert (second.number, second.restart_count) == (2, 0)


def test_loopback_addresses_are_used_among_agents_of_one_machine() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    for name in ("a", "b"):
        fleet.start(name, address="127.0.0.1", outside_address="192.0.2.7", boot_id="kernel 1")
    assert fleet.run_until_running("a", "b").master_addr == "127.0.0.1"


def test_a_loopback_address_is_replaced_for_other_machines() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", address="127.0.0.1", outside_address="192.0.2.7", boot_id="kernel 1")
    fleet.start("b", address="192.0.2.8", outside_address="192.0.2.8", boot_id="kernel 2")
    assert fleet.run_until_running("a", "b").master_addr == "192.0.2.7"


def test_kernels_that_do_not_tell_their_boot_id_are_not_one_machine() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    for name in ("a", "b"):
        fleet.start(name, address="::1", outside_address="192.0.2.7")
    assert fleet.run_until_running("a", "b").master_addr == "192.0.2.7"


def test_a_loopback_address_that_nothing_replaces_ends_the_job_with_advice() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    for name in ("a", "b"):
        fleet.start(name, address="127.0.0.1", boot_id=f"kernel of {name}")
    assert fleet.run_until_over() == {75}
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert "start it with --local-addr" in verdict.reason


def test_an_address_that_the_user_gives_is_the_one_that_the_others_are_told() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", address="127.0.0.1", local_addr="10.9.9.9", order_hint=0)
    fleet.start("b")
    assert fleet.run_until_running("a", "b").master_addr == "10.9.9.9"


def test_a_job_without_an_id_learns_it_from_its_store() -> None:
    fleet = Fleet(run_id="", min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    assert "/phalanx/told/job/round" in fleet.under("/phalanx/")


def test_no_port_ends_this_agent_and_not_the_others() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.agents["c"] = fleet["a"]
    del fleet.agents["c"]
    fleet.run_until_running("a", "b")
    fleet.start("c")
    fleet["c"].has_port = False
    fleet.run_until(lambda: fleet["c"].is_over)
    verdict = fleet["c"].verdict
    assert verdict is not None
    assert (verdict.exit_code, verdict.reason) == (75, "no port is free")
    fleet.run_until_running("a", "b")


def test_what_an_old_round_left_in_the_store_goes_when_the_round_after_the_next_opens() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=3)
    fleet.start("a", "b")
    for number in range(1, 4):
        fleet.run_until_running("a", "b", number=number)
        fleet.fail("a")
    fleet.run_until_running("a", "b", number=4)
    numbers = {
        one.split("/")[-3 if "reports" in one else -2] for one in fleet.under("/phalanx/job/nodes/reports/")
    }
    assert len(numbers) <= 1
    assert fleet.under("/phalanx/job/members/") == ["/phalanx/job/members/3", "/phalanx/job/members/4"]
    assert {one.split("/")[-2] for one in fleet.under("/phalanx/job/nodes/joined/")} == {"4"}


def test_messages_of_a_round_grow_linearly_with_the_nodes() -> None:
    def transactions(nodes: int) -> int:
        fleet = Fleet(min_nodes=nodes, max_nodes=nodes)
        names = [f"n{one}" for one in range(nodes)]
        fleet.start(*names)
        fleet.run_until_running(*names)
        return sum(one.link.sent.total() for one in fleet.agents.values())

    assert transactions(40) <= 4.5 * transactions(10)
