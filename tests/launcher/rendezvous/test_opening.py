"""The stores that command lines open: real ones, several agents of one job at a time."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.etcd.servers import answered, cluster, free_ports
from tests.system.launch import two_free_ports

from phalanx.cli.run import launch_values
from phalanx.cli.words import read_words
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.meeting import Meeting, MeetingError, meeting_of
from phalanx.rendezvous.keys import JobKeys
from phalanx.store.port import Refused, Store, Unclear

PATIENCE_S = 30


def meet(*words: str, program: Sequence[str] = ("true",)) -> Meeting:
    return meeting_of(
        RunOptions(**launch_values(read_words(["--nnodes=2:4", *words, "--no-python", *program]), {}))
    )


@pytest.fixture
def port() -> int:
    return two_free_ports()


@pytest.fixture
def endpoint(port: int) -> tuple[str, ...]:
    return ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")


async def share(first: Meeting, second: Meeting) -> tuple[Store, Store]:
    """Open both stores, and see in the second what was written through the first."""
    async with asyncio.timeout(PATIENCE_S):
        one = await answered(first.open_store)
        two = await answered(second.open_store)
        key = JobKeys(first.membership.run_id or one.run_id or "").members(1)
        assert key == JobKeys(second.membership.run_id or two.run_id or "").members(1)
        await answered(lambda: one.put(key, b"here"))
        found = await answered(lambda: two.get(key))
        assert found is not None
        assert (found.key, found.value) == (key, b"here")
    return one, two


async def close(*stores: Store) -> None:
    for store in reversed(stores):  # the host is the last to go
        await store.close()


def test_the_first_agent_serves_the_store_and_the_second_finds_it(endpoint: tuple[str, ...]) -> None:
    async def run() -> None:
        one, two = await share(meet(*endpoint, "--rdzv-id=7"), meet(*endpoint, "--rdzv-id=7"))
        assert (one.is_host, two.is_host) == (True, False)
        await close(one, two)

    asyncio.run(run())


def test_agents_without_an_id_adopt_that_of_the_host(endpoint: tuple[str, ...]) -> None:
    async def run() -> None:
        host, guest = meet(*endpoint), meet(*endpoint, "--node-rank=1")
        stores = await share(host, guest)
        assert host.run_id() == guest.run_id() != ""
        await close(*stores)

    asyncio.run(run())


def test_an_agent_without_an_id_adopts_one_that_the_host_was_given(endpoint: tuple[str, ...]) -> None:
    async def run() -> None:
        host, guest = meet(*endpoint, "--rdzv-id=a/7"), meet(*endpoint)
        async with asyncio.timeout(PATIENCE_S):
            one, two = await answered(host.open_store), await answered(guest.open_store)
            await answered(lambda: one.put(JobKeys(host.membership.run_id).members(1), b"here"))
            assert await answered(lambda: two.get(JobKeys(two.run_id or "").members(1))) is not None
            assert guest.run_id() == host.run_id() == "a/7"
        await close(one, two)

    asyncio.run(run())


@pytest.mark.parametrize("other", ["other arguments", "another number of nodes"])
def test_another_job_without_an_id_is_refused_with_a_sentence(other: str, endpoint: tuple[str, ...]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            host = await answered(meet(*endpoint, program=("true", "a")).open_store)
            stranger = (
                meet(*endpoint, program=("true", "b"))
                if other == "other arguments"
                else meet(*endpoint, "--nnodes=3", program=("true", "a"))
            )
            with pytest.raises(Refused, match="Another job meets at this endpoint"):
                await answered(stranger.open_store)
            await host.close()

    asyncio.run(run())


def test_agents_with_different_secrets_do_not_meet(endpoint: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a secret\n")
    (tmp_path / "theirs").write_text("another\n")

    async def run() -> None:
        mine = meet(*endpoint, "--rdzv-id=7", f"--secret-file={tmp_path}/mine")
        theirs = meet(*endpoint, "--rdzv-id=7", f"--secret-file={tmp_path}/theirs")
        async with asyncio.timeout(PATIENCE_S):
            host = await answered(mine.open_store)
            with pytest.raises(Refused):
                await answered(theirs.open_store)
            with pytest.raises(Refused):
                await answered(meet(*endpoint, "--rdzv-id=7").open_store)
            await (await answered(mine.open_store)).close()
            await host.close()

    asyncio.run(run())


def test_node_0_of_a_static_job_serves_the_store_beside_the_port_of_rank_0(port: int) -> None:
    words = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")

    async def run() -> None:
        with pytest.raises(Unclear):  # node 1 never serves, however early it is
            await meet(*words, "--node-rank=1").open_store()
        one, two = await share(meet(*words), meet(*words, "--node-rank=1"))
        assert (one.is_host, two.is_host) == (True, False)
        with closing(socket.socket()) as rank_0:
            rank_0.bind(("127.0.0.1", port))
        with closing(socket.create_connection(("127.0.0.1", port + 1))):
            pass
        await close(one, two)

    asyncio.run(run())


def test_who_is_told_not_to_serve_waits_for_a_host(endpoint: tuple[str, ...]) -> None:
    async def run() -> None:
        with pytest.raises(Unclear):
            await meet(*endpoint, "--rdzv-conf=is_host=false").open_store()

    asyncio.run(run())


@pytest.fixture
def certificates(tmp_path: Path) -> str:
    """An authority and a certificate that it signed for this machine, as the settings that name them."""
    ours = tmp_path / "tls"
    ours.mkdir()
    (ours / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    sign = (
        "openssl",
        "x509",
        "-req",
        "-in",
        "node.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
    )
    for command in (
        (*new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"),
        (*new, "-subj", "/CN=node", "-keyout", "node.key", "-out", "node.csr"),
        (*sign, "-days", "2", "-extfile", "names", "-out", "node.pem"),
    ):
        subprocess.run(command, cwd=ours, check=True, capture_output=True, timeout=PATIENCE_S)
    return f"--rdzv-conf=ca_cert={ours}/ca.pem,ssl_cert={ours}/node.pem,ssl_cert_key={ours}/node.key"


def test_agents_with_certificates_meet_over_tls_and_others_do_not(
    endpoint: tuple[str, ...], certificates: str
) -> None:
    async def run() -> None:
        words = (*endpoint, "--rdzv-id=7")
        one, two = await share(meet(*words, certificates), meet(*words, certificates))
        with pytest.raises((Refused, Unclear)):
            await meet(*words, "--rdzv-conf=is_host=false").open_store()
        await close(one, two)

    asyncio.run(run())


def test_files_that_are_no_certificates_are_a_mistake(endpoint: tuple[str, ...], tmp_path: Path) -> None:
    options = RunOptions(**launch_values(read_words(["--nnodes=2", "--no-python", "true"]), {}))
    known = {field: getattr(options, field) for field in RunOptions.__struct_fields__}
    for conf, sentence in {
        "protocol=https": "TLS between agents needs ca_cert, ssl_cert and ssl_cert_key",
        f"ca_cert={tmp_path}/x,ssl_cert={tmp_path}/x,ssl_cert_key={tmp_path}/x": "TLS is not possible with these files",
    }.items():
        pairs = dict(pair.split("=") for pair in conf.split(","))
        with pytest.raises(MeetingError, match=sentence):
            meeting_of(RunOptions(**{**known, "rdzv_conf": pairs}))


def test_an_etcd_that_runs_already_is_shared_by_jobs_with_ids() -> None:
    async def run() -> None:
        async with cluster(1) as [member]:
            words = ("--rdzv-backend=etcd-v2", f"--rdzv-endpoint={member.endpoint}")
            conf = "--rdzv-conf=etcd_prefix=/team"
            stores = await share(meet(*words, "--rdzv-id=7", conf), meet(*words, "--rdzv-id=7", conf))
            other = meet(*words, "--rdzv-id=8", conf)
            async with asyncio.timeout(PATIENCE_S):
                third = await answered(other.open_store)
                assert await answered(lambda: third.get(JobKeys(other.membership.run_id).members(1))) is None
                assert len((await answered(lambda: third.list("/phalanx/"))).items) == 1
            await close(*stores, third)

    asyncio.run(run())


@pytest.mark.parametrize(
    "backend",
    [("--rdzv-backend=file",), ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file")],
    ids=" ".join,
)
def test_a_folder_that_all_nodes_see_is_a_store(backend: tuple[str, ...], tmp_path: Path) -> None:
    async def run() -> None:
        words = (*backend, f"--rdzv-endpoint={tmp_path}/meeting", "--rdzv-id=7")
        await close(*await share(meet(*words), meet(*words)))

    asyncio.run(run())


def test_beside_the_file_that_torchrun_would_use_there_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "meeting").write_text("made by mktemp")

    async def run() -> None:
        words = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meeting", "--rdzv-id=7")
        await close(*await share(meet(*words), meet(*words)))

    asyncio.run(run())
    assert (tmp_path / "meeting").read_text() == "made by mktemp"
    assert (tmp_path / "meeting.phalanx").is_dir()


def test_an_id_that_was_used_for_a_job_that_is_over_can_be_used_again(tmp_path: Path) -> None:
    async def run() -> None:
        words = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meeting", "--rdzv-id=7")
        first = await meet(*words).open_store()
        verdict = JobKeys("7").verdict
        await first.put(verdict, b"{}")
        again = meet(*words)
        second = await again.open_store()
        assert await second.get(verdict) is None
        await first.put(verdict, b"{}")
        third = await again.open_store()  # the same agent comes back after a cut
        assert await third.get(verdict) is not None
        await close(first, second, third)

    asyncio.run(run())


@pytest.mark.system
def test_workers_do_not_get_the_secret(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nprint(sorted(name for name in os.environ if 'SECRET' in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_SECRET": "s3cret"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_three_endpoints_are_a_cluster_whose_data_goes_with_the_job(tmp_path: Path) -> None:
    ports = free_ports(6)[::2]  # a member also takes the port after its own
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    words = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}", "--rdzv-id=7")
    meetings = [meet(*words, f"--rdzv-conf=data_dir={tmp_path}") for _ in ports]

    async def run() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            stores = await asyncio.gather(*(answered(meeting.open_store) for meeting in meetings))
            assert all(store.is_host for store in stores)
            await answered(lambda: stores[0].put("/phalanx/7/x", b"here"))
            assert await answered(lambda: stores[2].get("/phalanx/7/x")) is not None
            await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(run())
    assert len(list(tmp_path.glob("etcd-?"))) == 3
    for meeting in meetings:
        assert meeting.forget is not None
        meeting.forget()
    assert not list(tmp_path.glob("etcd-?"))
