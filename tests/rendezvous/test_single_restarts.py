"""Single restarts: the leader charges each failure once, and nothing of a round outlives it."""

from __future__ import annotations

import random

import pytest
from tests.rendezvous.single_fleet import SingleFleet

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.rendezvous.stored import Phase
from phalanx.store.port import Delete

ASK = "report single/1"


def fleet(**settings: object) -> SingleFleet:
    return SingleFleet(**{"slots": 2, "max_restarts": 9, **settings})


def running(*names: str, **settings: object) -> SingleFleet:
    made = fleet(**settings)
    made.start(*names)
    made.run_until_running(*names)
    return made


def all_run(job: SingleFleet, *names: str) -> bool:
    return all(len(job[name].alive) == job[name].nproc for name in names)


def is_settled(job: SingleFleet) -> bool:
    return job.read(job.keys.round) is not None and job.record.phase is Phase.SETTLED


def spare_that_leads(**settings: object) -> SingleFleet:
    """``a`` leads, ``b`` and ``c`` run: its death is no change of membership."""
    job = fleet(min_nodes=2, max_nodes=2, **settings)
    job.start("b", "c")
    job.run_until_running("b", "c")
    job.start("a")
    late = [job[name].link.hold("campaign") for name in ("b", "c")]
    job.write(Delete(job.keys.leader))
    job.run_until(lambda: job.leader == "a")
    for one in late:
        one.deliver()
    return job


def test_a_worker_that_fails_is_started_again_alone_with_the_count_of_the_job() -> None:
    job = running("a", "b")
    job.fail("a", local_rank=1)
    job.run_until(lambda: all_run(job, "a", "b"))
    job.fail("b")
    job.run_until(lambda: all_run(job, "a", "b"))
    assert job.counts("a") == [1]
    assert job.counts("b") == [2]
    assert [len(job[name].formed) for name in ("a", "b")] == [1, 1], "the round goes on"
    assert (job.record.number, job.record.phase, job.record.restart_count) == (1, Phase.SETTLED, 2)
    (_, told), formed = job.node("b").restarts[0], job["b"].formed[0]
    assert (told.rank(0), told.master_port, told.number) == (2, formed.master_port, 1)
    assert told.reason == "rank 2 failed: ValueError: x (restart 2 of 9)"
    assert "rank 2 failed: ValueError: x (restart 2 of 9); started again alone" in job["b"].said
    assert not any("alone" in line for line in job["a"].said if "rank 2" in line)


def test_many_that_fail_at_once_are_charged_each() -> None:
    job = running("a", "b", slots=4)
    for name in ("a", "b"):
        job[name].summaries = dict.fromkeys(range(3), "OSError: no server")
        job[name].end_workers({0: 1, 1: 2, 2: -9})
    job.run_until(lambda: all_run(job, "a", "b"))
    assert sorted(job.counts("a", "b")) == [1, 2, 3, 4, 5, 6]
    assert job.record.restart_count == 6


def test_nothing_is_left_in_the_store_of_questions_that_were_answered() -> None:
    job = running("a", "b")
    for _ in range(3):
        job.fail("b")
        job.run_until(lambda: all_run(job, "b"))
    job.run(1)
    assert not [key for key in job.under(job.keys.all_reports) if "single" in key]
    assert job.under(job.keys.all_answers) == [job.keys.answer("b")]


def test_the_answers_of_a_round_go_with_it() -> None:
    job = running("a", "b", min_nodes=1)
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    job.leave("a")
    assert job.run_until_running("b", number=2).restart_count == 1
    assert job.under(job.keys.all_answers) == []
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    assert job.counts("b") == [1, 2], "the first question of the next round is another one"


def test_the_budget_is_the_jobs_and_its_end_the_end_of_all() -> None:
    job = running("a", "b", max_restarts=2)
    job.fail("a")
    job.run_until(lambda: all_run(job, "a"))
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    job.fail("a", code=7, summary="KeyError: 'w'", local_rank=1)
    assert job.run_until_over() == {7}
    for name in ("a", "b"):
        verdict = job[name].verdict
        assert verdict is not None
        assert verdict.reason == "all 2 restarts are used"
        assert verdict.cause is not None
        assert (verdict.cause.rank, verdict.cause.summary) == (1, "KeyError: 'w'")
        assert verdict.restart_count == 2
        assert verdict.stopped == ((0, 0), (2, 3))
    line = "rank 1 failed: KeyError: 'w'; all 2 restarts are used: asked {} to stop, 30 s of grace"
    assert line.format("1 worker") in job["a"].said, "the one that still ran"
    assert line.format("2 workers") in job["b"].said


def test_who_has_succeeded_or_is_dead_is_not_stopped_by_the_end_of_the_job() -> None:
    job = running("a", "b", "c", max_nodes=3, restarts=RestartPolicy(max_restarts=2, backoff_s=50.0))
    job.finish("c")
    job["a"].end_workers({0: 0})
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    job.fail("b")
    job.run_until(lambda: any("started again alone in" in line for line in job["b"].said))
    job.fail("b", local_rank=1, code=9)
    job.run_until(lambda: job["b"].is_stopping or job["b"].is_over)
    assert job["b"].said[-1].endswith("all 2 restarts are used: no worker runs here now")
    assert job.run_until_over() == {9}
    verdict = job["a"].verdict
    assert verdict is not None
    assert verdict.failed == ((3, 3),)
    assert verdict.stopped == ((0, 1),), "of other nodes the leader knows only who has ended as a whole"


def test_what_was_not_asked_when_the_workers_are_stopped_is_never_charged() -> None:
    job = running("a", "b")
    job["b"].stop_s = 2.0  # time enough to ask, and to be charged
    job.cut("b")
    job.fail("b")
    job.run_until(lambda: job["b"].is_stopping)
    job.heal()
    assert job.run_until_running("a", "b", number=2).restart_count == 0, (
        "nobody would have been started again"
    )
    assert job.counts("b") == []


def test_one_of_many_failures_may_be_the_end() -> None:
    job = running("a", "b", slots=4, max_restarts=2)
    job["a"].end_workers(dict.fromkeys(range(4), 3))
    assert job.run_until_over() == {3}
    assert len(job.node("a").restarts) <= 2


def test_without_a_budget_the_first_failure_is_the_end() -> None:
    job = running("a", "b", max_restarts=0)
    job.fail("b", code=4)
    assert job.run_until_over() == {4}


def test_who_has_succeeded_stays_so_and_the_last_of_each_decide() -> None:
    job = running("a", "b")
    job["a"].end_workers({0: 0})
    job.fail("a", local_rank=1)
    job.finish("b")
    job.run_until(lambda: job["a"].alive == {1})
    job.fail("a", local_rank=1)
    job.run_until(lambda: job["a"].alive == {1})
    job.finish("a")
    assert job.run_until_over() == {0}
    assert [one for one, _ in job.node("a").restarts] == [1, 1]


def test_a_worker_that_cannot_be_started_again_has_failed_once_more() -> None:
    job = running("a", "b")
    job.node("a").cannot_start = {0}
    job.fail("a")
    job.run_until(lambda: all_run(job, "a"))
    assert job.counts("a") == [2]
    assert any("could not be started" in line or "rank 0" in line for line in job["a"].said)


def test_what_a_worker_left_is_ended_before_its_successor_starts() -> None:
    job = running("a", "b")
    job.node("a").leaves_children = True
    job.fail("a")
    job.run(0.4)
    assert 0 not in job["a"].alive
    job.run_until(lambda: all_run(job, "a"))
    assert job.node("a").swept == [0, 0], "TERM, then KILL"


def test_restarts_wait_when_one_follows_the_other() -> None:
    job = running("a", "b", restarts=RestartPolicy(max_restarts=9, backoff_s=4.0))
    job.fail("a")
    job.run(0.1)
    assert all_run(job, "a"), "the first one at once"
    job.fail("a")
    job.run(1.9)
    assert not all_run(job, "a")
    job.run(2.2)
    assert all_run(job, "a")
    assert any(
        "2 failures in a row came within 1 min; is started again alone in " in line for line in job["a"].said
    )


def test_a_long_life_is_no_flapping_whatever_the_others_do() -> None:
    job = running("a", "b", restarts=RestartPolicy(max_restarts=9, backoff_s=4.0))
    job.run(100)
    for name in ("a", "b", "a"):
        job.fail(name, local_rank=int(name == "a" and bool(job.node("a").restarts)))
        job.run(0.1)
        assert all_run(job, "a", "b"), name


def test_healthy_time_is_counted_from_the_last_restart() -> None:
    job = running("a", "b", restarts=RestartPolicy(max_restarts=1, refill_after_s=50.0))
    for _ in range(3):
        job.run(60)
        job.fail("a")
        job.run(1)
        assert all_run(job, "a")
    job.fail("b")
    assert job.run_until_over() == {1}


# Who leads may die, and what it wrote may be unclear


def test_a_leader_that_died_before_it_answered_leaves_the_question_to_the_next() -> None:
    job = spare_that_leads()
    held = job["a"].link.hold("lead")
    job.fail("b")
    job.run(5)
    assert len(held.commands) == 1
    assert not all_run(job, "b")
    job.kill("a")
    job.run_until(lambda: all_run(job, "b", "c"))
    assert held.deliver() == [False], "the answer of a former leader comes late"
    job.run(30)
    assert job.counts("b") == [1]
    assert (job.record.number, job.record.restart_count) == (1, 1)


def test_a_leader_that_died_after_it_answered_has_charged_once() -> None:
    job = spare_that_leads()
    held = job["a"].link.hold_answers("lead")
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    assert held.commands
    job.kill("a")
    job.run(60)
    job.fail("c")
    job.run_until(lambda: all_run(job, "b", "c"))
    assert job.counts("b", "c") == [1, 2]
    assert job.record.number == 1


@pytest.mark.parametrize("is_applied", [True, False])
def test_an_answer_that_was_unclear_to_the_leader_is_given_once(is_applied: bool) -> None:
    job = running("a", "b")
    leader = job.leader
    assert leader is not None
    job[leader].link.lose_answer("lead", is_applied=is_applied)
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    job.run(10)
    assert job.counts("b") == [1]
    assert job.record.restart_count == 1


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_question_that_was_unclear_is_asked_until_it_is_heard(is_applied: bool) -> None:
    job = running("a", "b")
    job["b"].link.lose_answer(ASK, is_applied=is_applied, times=3)
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    job.run(10)
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    assert job.counts("b") == [1, 2]


def test_a_copy_of_a_question_that_comes_late_costs_nothing() -> None:
    job = running("a", "b")
    held = job["b"].link.hold(ASK)
    job.fail("b")
    job.run(5)
    copies = list(held.commands)
    assert copies
    held.deliver()
    job.run_until(lambda: all_run(job, "b"))
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    for _, command in copies:
        job["b"].link.transact_now(command)
    job.run(10)
    assert job.record.restart_count == 2
    job.fail("b")
    job.run_until(lambda: all_run(job, "b"))
    assert job.counts("b") == [1, 2, 3]


# Something else ends the round


def test_a_question_that_is_open_when_membership_changes_is_void_with_its_round() -> None:
    job = running("a", "b", "c", min_nodes=2, max_nodes=3)
    held = job["b"].link.hold(ASK)
    job.fail("b")
    job.leave("c")
    formed = job.run_until_running("a", "b", number=2)
    assert formed.restart_count == 0
    held.deliver()  # its registration is the same, and so it may be written; nobody reads it
    job.run(10)
    assert job.counts("b") == []
    assert job.record.restart_count == 0
    assert all_run(job, "a", "b")


def test_an_answer_whose_round_ends_during_the_wait_is_void_and_charged_once() -> None:
    job = running(
        "a", "b", "c", min_nodes=2, restarts=RestartPolicy(max_restarts=9, backoff_s=30.0), max_nodes=3
    )
    job.fail("b")
    job.run(0.1)
    job.fail("b")
    job.run(1)
    assert job["b"].alive == {1}
    job.kill("c")
    formed = job.run_until_running("a", "b", number=2)
    assert formed.restart_count == 2
    job.run(60)
    assert job.counts("b") == [1], "nobody is started again beside the workers of the next round"
    assert job.record.restart_count == 2


def test_a_node_that_is_lost_while_it_asks_takes_its_question_with_it() -> None:
    job = running("a", "b", min_nodes=1)
    held = job["b"].link.hold(ASK)
    job.fail("b")
    job.kill("b")
    formed = job.run_until_running("a", number=2)
    assert formed.restart_count == 0
    held.deliver()
    job.run(30)
    assert job.record.restart_count == 0


def test_a_store_that_lost_its_data_hears_from_survivors_what_was_charged() -> None:
    job = running("a", "b")
    for _ in range(2):
        job.fail("a")
        job.run_until(lambda: all_run(job, "a"))
    held = job["b"].link.hold(ASK)
    job.fail("b")
    job.serve_store()
    formed = job.run_until_running("a", "b", number=2)
    assert formed.restart_count == 2, "the open question died with its round"
    held.deliver()
    job.run(20)
    assert job.counts("b") == []


def test_a_cut_node_stops_all_of_its_workers_and_waits_for_no_answer() -> None:
    job = running("a", "b", min_nodes=1)
    job.cut("b")
    job.fail("b")
    formed = job.run_until_running("a", number=2)
    assert formed.restart_count == 0
    assert not job["b"].alive
    job.heal()
    assert job.run_until_running("a", "b", number=3).restart_count == 0


def test_who_is_told_to_stop_while_a_worker_waits_ends_by_the_signal() -> None:
    job = running("a", "b", min_nodes=1)
    held = job["b"].link.hold(ASK)
    job.fail("b")
    job.leave("b")
    job.run(1)
    held.deliver()
    job.run_until(lambda: job["b"].is_over)
    verdict = job["b"].verdict
    assert verdict is not None
    assert verdict.exit_code == 143
    assert job.run_until_running("a", number=2).restart_count == 0


def test_stragglers_are_counted_from_the_first_success_and_who_waits_is_one() -> None:
    job = running("a", "b", straggler_s=20.0, max_restarts=0)
    held = job["a"].link.hold(ASK)
    job.fail("a")
    job.run(10)
    job["a"].end_workers({1: 0})
    job.finish("b")
    job.run(19)
    assert not job["a"].is_stopping
    job.run(2)
    held.deliver()
    assert job.run_until_over() == {1}
    assert any("rank 0 still ran" in line for line in job["a"].said)
    for name in ("a", "b"):
        verdict = job[name].verdict
        assert verdict is not None
        assert verdict.cause is not None
        assert verdict.cause.rank == 0


# Random histories


HISTORY = ("fail", "fail", "fail", "many", "lose", "cut", "time", "hold", "freeze", "leave", "die", "store")


class History:
    """Random failures of workers, nodes, messages and the store; ``failed`` workers can have been charged at most."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=10_000)
        self.failed = 0

    def step(self) -> None:
        job, chance = self.job, self.chance
        names = [name for name in "abc" if not job[name].is_over and job[name].alive]
        if not names:
            job.run(5)
            return
        name = chance.choice(names)
        agent = job[name]
        match chance.choice(HISTORY):
            case "fail" | "many" as what:
                alive = sorted(agent.alive)
                ranks = alive if what == "many" else [chance.choice(alive)]
                self.failed += len(ranks)
                agent.end_workers(dict.fromkeys(ranks, 1))
                job.work()
            case "lose":
                purpose = chance.choice(("lead", "report single/1", "report single/2", "report single/3"))
                agent.link.lose_answer(purpose, is_applied=chance.random() < 0.5)
            case "cut":
                job.cut(name)
                job.run(chance.choice((0.5, 3.0, 20.0)))
                job.heal()
            case "freeze":
                job.freeze(name)
                job.run(chance.choice((0.5, 3.0, 20.0)))
                job.thaw()
            case "hold":
                held = agent.link.hold("lead")
                job.run(chance.choice((0.5, 3.0)))
                held.deliver()
            case "leave" | "die" as what:
                job.leave(name) if what == "leave" else job.kill(name)
                job.run_until(lambda: agent.is_over)
                job.start(name)
            case "store":
                job.lose_store()
                job.run(chance.choice((0.0, 2.0)))
                job.serve_store(is_empty=chance.random() < 0.5)
            case _:
                job.run(chance.choice((0.0, 0.1, 1.0, 10.0)))


@pytest.mark.parametrize("seed", range(30))
def test_every_failure_is_charged_at_most_once_whatever_else_happens(seed: int) -> None:
    history = History(seed)
    job = history.job
    for _ in range(30):
        history.step()
        assert job.read(job.keys.round) is None or job.record.restart_count <= history.failed, job.story()
    job.heal()
    job.thaw()
    job.run_until(lambda: is_settled(job) and all_run(job, "a", "b", "c"), within_s=2000)
    count = job.record.restart_count
    job.run(60)
    assert job.record.restart_count == count <= history.failed
    told = job.counts("a", "b", "c")
    assert len(set(told)) == len(told), "one charge for two lives"
    assert max(told, default=0) <= count
    for name in "abc":
        job.finish(name)
    assert job.run_until_over() == {0}
