"""Plans: the same words, seed and size are the same plan, for ever."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.chaos.plan import Aim, NotHere, Place, Schedule, Span, node_for, ranks_for, steps
from phalanx.cli.chaos import orders_of

TWO_NODES = [Place(rank, rank % 2, rank // 2) for rank in range(4)]
SPANS = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(lambda ends: Span(min(ends), max(ends)))
AIMS = st.one_of(
    st.just(Aim()),
    st.just(Aim(random_node=True)),
    st.just(Aim(all_ranks=True)),
    st.integers(0, 3).map(lambda rank: Aim(ranks=(rank,))),
    st.integers(0, 1).map(lambda node: Aim(node=node)),
    st.integers(0, 1).map(lambda local_rank: Aim(local_ranks=(local_rank,), random_node=True)),
    st.integers(0, 1).map(lambda node: Aim(node=node, all_ranks=True)),
)


def test_a_plan_is_what_it_was_when_this_was_written() -> None:
    orders = orders_of(["kill", "--after", "5s:10s", "--every", "30s:60s", "--times", "5", "--seed", "7"])
    assert orders is not None

    plan = [
        (step.wait_s, ranks_for(orders.aim, step.draw, TWO_NODES)) for step in steps(orders.schedule, "7")
    ]

    assert plan == GOLDEN


GOLDEN = [(5.941, (3,)), (45.362, (3,)), (35.454, (1,)), (33.675, (1,)), (58.687, (3,))]


@given(seed=st.text(), after=SPANS, every=SPANS, times=st.integers(1, 20))
def test_waits_are_within_their_bounds_and_repeat(seed: str, after: Span, every: Span, times: int) -> None:
    schedule = Schedule(after=after, every=every, times=times)

    plan = list(steps(schedule, seed))

    assert [step.number for step in plan] == list(range(1, times + 1))
    for step, span in zip(plan, [after, *[every] * times], strict=False):
        assert span.low_s - 0.001 <= step.wait_s <= span.high_s + 0.001
    assert plan == list(steps(schedule, seed))


@given(seed=st.text(), count=st.integers(1, 30))
def test_a_plan_without_end_begins_as_one_with(seed: str, count: int) -> None:
    once, often = Span(0.0, 1.0), Span(2.0, 3.0)
    endless = steps(Schedule(after=once, every=often, times=None), seed)
    assert list(itertools.islice(endless, count)) == list(
        steps(Schedule(after=once, every=often, times=count), seed)
    )


@given(aim=AIMS, draw=st.integers(0, 2**64 - 1), order=st.permutations(TWO_NODES))
def test_whom_a_step_meets_is_here_and_does_not_depend_on_the_order_of_looking(
    aim: Aim, draw: int, order: list[Place]
) -> None:
    ranks = ranks_for(aim, draw, order)

    assert ranks == ranks_for(aim, draw, TWO_NODES)
    assert ranks
    assert set(ranks) <= {0, 1, 2, 3}
    if aim.node is not None:
        assert {rank // 2 for rank in ranks} == {aim.node}
    if aim.ranks:
        assert ranks == aim.ranks


def test_in_the_long_run_a_random_rank_is_each_of_them() -> None:
    schedule = Schedule(after=Span(0.0, 0.0), every=Span(0.0, 0.0), times=200)
    for aim in (Aim(), Aim(random_node=True)):
        assert {ranks_for(aim, step.draw, TWO_NODES) for step in steps(schedule, "x")} == {
            (0,),
            (1,),
            (2,),
            (3,),
        }


@pytest.mark.parametrize(
    ("aim", "sentence"),
    [
        (Aim(ranks=(1, 7)), "rank 7 is not on this machine, which has ranks 0, 1, 2 and 3 of the job"),
        (
            Aim(ranks=(8, 7)),
            "ranks 7 and 8 are not on this machine, which has ranks 0, 1, 2 and 3 of the job",
        ),
        (Aim(node=5), "node 5 is not on this machine, which has nodes 0 and 1 of the job"),
        (Aim(node=1, ranks=(0,)), "rank 0 is not on this machine, which has ranks 2 and 3 of the job"),
        (
            Aim(node=1, local_ranks=(2,)),
            "local rank 2 is not on this machine, which has local ranks 0 and 1 of the job",
        ),
        (
            Aim(local_ranks=(0,)),
            "which node's local rank? This machine has nodes 0 and 1 of the job; say --node N or random",
        ),
    ],
)
def test_who_is_not_here_is_named_with_who_is(aim: Aim, sentence: str) -> None:
    with pytest.raises(NotHere) as refused:
        ranks_for(aim, 0, TWO_NODES)
    assert str(refused.value) == sentence


def test_local_ranks_of_a_node_are_ranks_of_the_job() -> None:
    assert ranks_for(Aim(node=1, local_ranks=(0,)), 0, TWO_NODES) == (2,)


def test_local_ranks_of_a_random_node_are_those_of_one_that_has_them() -> None:
    here = [Place(0, 0, 0), Place(1, 0, 1), Place(2, 1, 1)]
    aim = Aim(local_ranks=(1,), random_node=True)
    assert {ranks_for(aim, draw, here) for draw in range(4)} == {(2,)}
    with pytest.raises(NotHere, match="local rank 5 is not on this machine"):
        ranks_for(Aim(local_ranks=(5,), random_node=True), 0, here)


def test_a_seed_may_be_any_word() -> None:
    schedule = Schedule(after=Span(0.0, 0.0), every=Span(0.0, 0.0), times=1)
    assert list(steps(schedule, "\udcff")) == list(steps(schedule, "\udcff"))


def test_one_agent_needs_no_name_and_two_do() -> None:
    assert node_for(Aim(), 5, [3]) == 3
    with pytest.raises(NotHere, match="which node"):
        node_for(Aim(), 5, [3, 4])
    assert {node_for(Aim(random_node=True), draw, [3, 4]) for draw in range(4)} == {3, 4}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "",
            "chaos takes an act first: kill, stop, freeze, cut, slow; write phalanx chaos ACT [flags] [-- COMMAND ...]",
        ),
        (
            "-- phalanx run train.py",
            "chaos takes an act first: kill, stop, freeze, cut, slow; write phalanx chaos ACT [flags] [-- COMMAND ...]",
        ),
        (
            "--job x kill",
            "chaos takes an act first: kill, stop, freeze, cut, slow; write phalanx chaos ACT [flags] [-- COMMAND ...]",
        ),
        ("kil", "'kil' is no act of chaos; did you mean kill?"),
        ("kill --rnak 1", "chaos has no flag --rnak here; did you mean --rank?"),
        ("kill --ra 1", "chaos has no flag --ra here; did you mean --rank?"),
        ("kill --rank x", "--rank: 'x' is no whole number"),
        ("kill --rank 1 --node random", "a rank is on one node; leave --node out"),
        ("kill --events-file f -- true", "--events-file has no effect without --at-step"),
        ("kill train.py", "chaos does not know what to do with 'train.py'; a command follows --"),
        (
            "kill --rank 0 --local-rank 0",
            "--rank and --local-rank name workers in two ways; write one of them",
        ),
        ("kill --agent --rank 0", "--agent means the launcher, not a worker; say which with --node"),
        ("kill --times 3", "--times needs --every, the wait between one time and the next"),
        ("kill --times 0", "--times: 0 is no time at all; write 1 or more"),
        ("kill --every 9:3", "--every: '9:3': the longest time is shorter than the shortest"),
        ("kill --signal NO", "--signal: 'NO' is no signal of this system; write SIGKILL, TERM or 9"),
        (
            "kill --at-step 3",
            "--at-step needs --events-file, the file that the job's own --events-file names",
        ),
        ("kill --", "no command follows --; write the whole line there, such as -- phalanx run train.py"),
        (
            "kill --wait 3 -- true",
            "--wait has no effect on a command, whose job is waited for as long as it runs",
        ),
        ("slow --to 0.25", "--to: '0.25' is no share; write 1% to 99%"),
        ("slow --to 100%", "--to: '100%' is no share; write 1% to 99%"),
        ("stop --for 0", "--for: '0' is no time at all; write seconds, or 90s, 5m, 1h"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    from phalanx.cli.chaos import main

    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"chaos: error: {sentence}\n"


def test_words_become_orders() -> None:
    orders = orders_of(
        [
            "kill",
            "--node",
            "1",
            "--signal",
            "term",
            "--every",
            "1m",
            "--job",
            "x",
            "--",
            "phalanx",
            "run",
            "--rank",
            "9",
            "a.py",
        ]
    )
    assert orders is not None
    assert (orders.aim, orders.signum, orders.job) == (Aim(node=1, all_ranks=True), 15, "x")
    assert orders.schedule == Schedule(after=Span(0.0, 0.0), every=Span(60.0, 60.0), times=None)
    assert orders.command == ("phalanx", "run", "--rank", "9", "a.py")
    twice = orders_of(["kill", "--rank", "1,1,0"])
    assert twice is not None
    assert (twice.aim.ranks, twice.signum) == ((1, 0), 9)


@pytest.mark.parametrize("act", ["kill", "stop", "freeze", "cut", "slow"])
def test_each_act_has_a_page_with_an_example_that_can_be_typed(
    act: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orders_of([act, "--help"]) is None
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    (example,) = [line.split() for line in page.splitlines() if line.startswith("  phalanx chaos")]
    assert orders_of(example[2:]) is not None


def test_the_page_of_all_acts_has_an_example_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    from phalanx.cli import main

    assert main(["chaos", "--help"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    for line in page.splitlines():
        if line.startswith("  phalanx chaos"):
            assert orders_of(line.split()[2:]) is not None
