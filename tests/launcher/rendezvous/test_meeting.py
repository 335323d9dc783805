"""From what was asked for to a node's membership and the store that it opens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.cli.mistakes import UsageError
from phalanx.cli.run import launch_values
from phalanx.cli.words import read_words
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.meeting import Meeting, MeetingError, meeting_of
from phalanx.launcher.rendezvous.members import fingerprint
from phalanx.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from phalanx.rendezvous.settings import Growth

C10D = ("--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400")


def options_of(*words: str) -> RunOptions:
    return RunOptions(**launch_values(read_words([*words, "--no-python", "true"]), {}))


def changed(options: RunOptions, **fields: Any) -> RunOptions:
    known = {field: getattr(options, field) for field in RunOptions.__struct_fields__}
    return RunOptions(**{**known, **fields})


def meet(*words: str) -> Meeting:
    return meeting_of(options_of(*words))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=7"],
        ["--nnodes=1:4", "--standalone"],
        ["--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
    ],
)
def test_a_node_that_meets_nobody_keeps_its_store_in_memory(words: list[str]) -> None:
    meeting = meet(*words)
    assert (meeting.membership.min_nodes, meeting.membership.max_nodes) == (1, 1)
    assert meeting.membership.master_addr == "127.0.0.1"
    assert meeting.run_id() == meeting.membership.run_id

    async def use() -> str:
        store = await meeting.open_store()
        await store.put("a", b"1")
        await store.close()
        return type(store).__name__

    assert asyncio.run(use()) == "MemoryStore"


def test_a_job_of_one_node_without_an_id_makes_one_which_no_other_has() -> None:
    assert meet().run_id() != meet().run_id()
    assert meet("--rdzv-id=job 7").run_id() == "job 7"


def test_a_lone_node_is_known_by_the_address_that_the_user_gave() -> None:
    assert meet("--local-addr=10.0.0.1").membership.master_addr == "10.0.0.1"
    assert meet("--local-addr=10.0.0.1", "--master-addr=node0").membership.master_addr == "node0"
    assert meet("--rdzv-endpoint=node0:29501").membership.master_port == 29501


def test_ports_for_rank_0_may_be_limited_on_one_node_and_on_many() -> None:
    for words in ((), C10D):
        assert meet("--rdzv-conf=master_port_range=7-9", *words).master_port_range == range(7, 10)


def test_the_settings_of_torchelastic_become_those_of_the_membership() -> None:
    conf = "join_timeout=9,last_call_timeout=8,keep_alive_interval=2,keep_alive_max_attempt=4,store_timeout=7"
    member = meet(
        *C10D, f"--rdzv-conf={conf},join_policy=never,topology=rack1", "--nproc-per-node=3"
    ).membership
    assert (member.min_nodes, member.max_nodes, member.slots) == (2, 4, 3)
    assert (member.join_timeout_s, member.last_call_s, member.ttl_s, member.store_timeout_s) == (9, 8, 8, 7)
    assert (member.growth, member.topology) == (Growth.NEVER, "rack1")


def test_without_settings_the_times_are_torchelastics() -> None:
    member = meet(*C10D).membership
    assert (member.join_timeout_s, member.last_call_s, member.ttl_s) == (600, 30, 15)
    assert member.drain_s == 30
    assert (member.exit_barrier_s, member.growth, member.is_static) == (None, Growth.NOW, False)
    assert meet("--nnodes=2").membership.join_timeout_s == 900


def test_a_timeout_of_the_older_backends_is_the_time_to_join() -> None:
    assert meet(*C10D, "--rdzv-conf=timeout=5").membership.join_timeout_s == 5
    assert meet("--nnodes=2", "--rdzv-conf=timeout=5").membership.join_timeout_s == 5
    assert meet(*C10D, "--rdzv-conf=timeout=5,join_timeout=6").membership.join_timeout_s == 6


def test_a_node_rank_orders_the_nodes_of_an_elastic_job_only_if_it_was_given() -> None:
    assert meet(*C10D).membership.order_hint is None
    assert meet(*C10D, "--node-rank=3").membership.order_hint == 3


def test_the_endpoint_alone_is_rank_0s_address_with_the_static_backend() -> None:
    for words in (
        ["--rdzv-endpoint=node0:29501"],
        ["--master-addr=node0", "--master-port=29501"],
        ["--rdzv-endpoint=node0", "--master-port=29501"],
    ):
        member = meet("--nnodes=2", "--node-rank=1", *words).membership
        assert (member.master_addr, member.master_port) == ("node0", 29501)
        assert (member.is_static, member.order_hint, member.min_nodes, member.max_nodes) == (True, 1, 2, 2)


def test_the_static_backend_without_an_address_is_torchruns_127_0_0_1_29500() -> None:
    meeting = meet("--nnodes=2")
    member = meeting.membership
    assert (member.master_addr, member.master_port, member.order_hint) == ("127.0.0.1", 29500, 0)
    assert [about for about, _ in meeting.warnings] == ["rdzv_endpoint"], "no other machine can come there"


def test_a_range_of_nodes_is_its_upper_end_where_nobody_may_leave() -> None:
    meeting = meet("--nnodes=1:3", "--master-addr=node0")
    assert (meeting.membership.min_nodes, meeting.membership.max_nodes) == (3, 3)
    assert [about for about, _ in meeting.warnings] == ["nnodes"]


@pytest.mark.parametrize(
    ("words", "about", "sentence"),
    [
        (["--nnodes=2", "--master-port=0"], "master_port", "port 0 is another free port on each node"),
        (["--nnodes=2", "--master-port=65535"], "rdzv_conf", "store_port must be another port"),
        (["--nnodes=2", "--rdzv-conf=store_port=29500"], "rdzv_conf", "store_port must be another port"),
        (["--nnodes=2", "--rdzv-endpoint=a,b"], "rdzv_endpoint", "the static backend has one endpoint"),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0"], "rdzv_endpoint", "port 0 is another"),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b,c"],
            "rdzv_id",
            "not given, and several hosts",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=http://h:1"],
            "rdzv_endpoint",
            "without http://",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:1,a:2,b:1", "--rdzv-id=7"],
            "rdzv_endpoint",
            "two endpoints of one host need ports that are two apart",
        ),
        (["--nnodes=2", "--rdzv-backend=etcd"], "rdzv_id", "not given, and jobs share an etcd"),
        (
            ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=7", "--rdzv-endpoint=https://a:1,http://b:1"],
            "rdzv_endpoint",
            "some endpoints are https",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=7", "--rdzv-conf=ssl_cert=c"],
            "rdzv_conf",
            "ssl_cert and ssl_cert_key go together",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=7", "--rdzv-conf=user=me"],
            "rdzv_conf",
            "user needs password_file",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=7", "--rdzv-conf=user=me,password_file=/no"],
            "rdzv_conf",
            "password_file cannot be read",
        ),
        (
            ["--nnodes=2", "--rdzv-backend=file", "--rdzv-endpoint=/x"],
            "rdzv_id",
            "not given, and jobs share a folder",
        ),
        (["--nnodes=2", "--rdzv-conf=run_id=7"], "rdzv_conf", "run_id is no key"),
    ],
)
def test_words_that_do_not_go_together_are_one_sentence_about_one_option(
    words: list[str], about: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        options_of(*words)
    assert str(caught.value).startswith(f"--{about.replace('_', '-')}: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_launcher_itself_refuses_what_the_command_line_would() -> None:
    with pytest.raises(MeetingError) as caught:
        meeting_of(changed(options_of("--nnodes=2"), node_rank=2))
    assert caught.value.about == "node_rank"


def test_a_job_without_an_id_is_known_by_its_size_program_and_arguments() -> None:
    options = options_of(*C10D)
    assert fingerprint(options) == fingerprint(options_of(*C10D, "--node-rank=3", "--nproc-per-node=2"))
    others: list[dict[str, Any]] = [
        {"max_nodes": 5},
        {"min_nodes": 1},
        {"entrypoint": "false"},
        {"args": ("x",)},
        {"args": ("x", "y")},
    ]
    prints = {fingerprint(changed(options, **fields)) for fields in others}
    assert len({*prints, fingerprint(options)}) == 6
    assert all(len(one) == 64 for one in prints)


def test_the_id_of_a_hosted_job_is_unknown_until_its_store_tells_it() -> None:
    assert (meet(*C10D).run_id(), meet(*C10D).membership.run_id) == ("", "")
    assert meet(*C10D, "--rdzv-id=7").run_id() == "7"


def test_no_jobs_keys_begin_like_those_of_another() -> None:
    meeting = meet(*C10D, "--rdzv-id=team/job%2F")
    assert meeting.run_id() == "team/job%2F"
    assert meeting.membership.run_id == "team%2Fjob%252F"


def test_a_derived_key_is_mentioned_once_unless_only_this_machine_can_reach_the_store() -> None:
    (notice,) = meet(*C10D).notices
    assert notice.startswith("no secret is set (PHALANX_SECRET or --secret-file)")
    assert notice.endswith("can join at node0:29400")
    assert not meet(*C10D, "--secret-file=/proc/sys/kernel/ostype").notices
    for endpoint in ("localhost", "127.0.0.1:1", "[::1]:1"):
        assert not meet("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}").notices


def test_two_agents_of_one_machine_and_network_know_it() -> None:
    first, second = meet(*C10D).membership, meet(*C10D).membership
    assert first.boot_id == second.boot_id != ""
    assert first.node_id != second.node_id


class Handler(RendezvousHandler):
    """Somebody else's, which shows what it was made of."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params

    def get_backend(self) -> str:
        return "theirs"

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.params.run_id

    def shutdown(self) -> bool:
        return True


rendezvous_handler_registry.register("theirs", Handler)


def of_a_plug_in(*words: str, **fields: Any) -> Meeting:
    return meeting_of(changed(options_of(*words), rdzv_backend="theirs", **fields))


@pytest.mark.parametrize("nodes", ["1", "2:4"])
def test_the_handler_of_a_plug_in_gets_the_words_as_torchrun_would_give_them(nodes: str) -> None:
    meeting = of_a_plug_in(
        f"--nnodes={nodes}", "--rdzv-id=7", "--local-addr=me", rdzv_endpoint="a;b", rdzv_conf={"timeout": "x"}
    )
    assert meeting.make_handler is not None
    handler = meeting.make_handler()
    assert isinstance(handler, Handler)
    params = handler.params
    assert (params.backend, params.endpoint, params.run_id, params.local_addr) == ("theirs", "a;b", "7", "me")
    assert params.config == {"timeout": "x"}
    assert f"{params.min_nodes}:{params.max_nodes}" == (nodes if ":" in nodes else f"{nodes}:{nodes}")


def test_a_plug_ins_job_without_an_id_has_the_same_one_on_every_node() -> None:
    first, second = of_a_plug_in("--nnodes=2"), of_a_plug_in("--nnodes=2", "--node-rank=1")
    assert first.run_id() == second.run_id() == first.membership.run_id != ""
    assert first.run_id() != of_a_plug_in("--nnodes=3").run_id()


def test_a_standalone_node_asks_no_plug_in() -> None:
    assert of_a_plug_in("--standalone").make_handler is None
