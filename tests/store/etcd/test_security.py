"""TLS, client certificates, users and passwords, against real servers with real certificates."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.etcd.servers import FAST, Member, cluster, serving

from phalanx.store.etcd import open_etcd
from phalanx.store.etcd.binary import find_etcd
from phalanx.store.etcd.connection import Call
from phalanx.store.etcd.opening import open_session
from phalanx.store.etcd.store import EtcdV3Store
from phalanx.store.port import Refused, Unclear

PATIENCE_S = 60


class Authority:
    """A certificate authority of openssl's, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.cert, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        self._run(
            "req", "-x509", "-days", "2", "-subj", f"/CN={name}", "-out", self.cert, *_new_key(self.key)
        )

    def sign(self, name: str, *, usage: str, alternatives: str = "") -> tuple[str, str]:
        cert, key = str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(
            f"extendedKeyUsage={usage}\n" + (f"subjectAltName={alternatives}\n" if alternatives else "")
        )
        self._run("req", "-subj", f"/CN={name}", "-out", f"{cert}.request", *_new_key(key))
        authority = ("-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-extfile", str(extensions))
        self._run("x509", "-req", "-days", "2", "-in", f"{cert}.request", "-out", cert, *authority)
        return cert, key

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def _new_key(path: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def on_tls(authority: Authority, story: Callable[[Member], Awaitable[None]], *, is_mutual: bool) -> None:
    """Run a story with a TLS server. Its certificate is for servers only, as most are: etcd's own JSON gateway cannot
    work with it when clients need certificates; we do.
    """
    cert, key = authority.sign("server", usage="serverAuth", alternatives="IP:127.0.0.1,DNS:localhost")
    options: dict[str, Any] = {"ca_cert": authority.cert}
    arguments = [*FAST, "--cert-file", cert, "--key-file", key]
    if is_mutual:
        arguments += ["--client-cert-auth", "--trusted-ca-file", authority.cert]
        options["cert"], options["key"] = authority.sign("client", usage="clientAuth")

    async def run() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            async with cluster(1, arguments=arguments, scheme="https", **options) as [member]:
                await story(member)

    asyncio.run(run())


def test_tls_reaches_a_server_by_address_and_by_name(authority: Authority) -> None:
    async def story(member: Member) -> None:
        port = member.endpoint.rpartition(":")[2]
        for endpoint in (member.endpoint, f"localhost:{port}"):
            store = await open_etcd(endpoint, tls=True, ca_cert=authority.cert, attempt_s=PATIENCE_S)
            await store.put("/t/", b"1")
            assert store.source_address in ("127.0.0.1", "::1")
            await store.close()

    on_tls(authority, story, is_mutual=False)


def test_a_server_that_is_not_trusted_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")

    async def story(member: Member) -> None:
        with pytest.raises(Refused, match="certificate is not trusted"):
            await open_etcd(member.endpoint, tls=True, ca_cert=stranger.cert, attempt_s=PATIENCE_S)
        with pytest.raises(Refused, match="certificate is not trusted"):
            await open_etcd(member.endpoint, tls=True, attempt_s=PATIENCE_S)
        with pytest.raises(Unclear):  # without TLS
            await open_etcd(member.endpoint, attempt_s=0.5)

    on_tls(authority, story, is_mutual=False)


def test_mutual_tls_needs_a_certificate_of_ours(authority: Authority) -> None:
    cert, key = authority.sign("another", usage="clientAuth")
    both = Path(cert).with_name("both.pem")
    both.write_bytes(Path(key).read_bytes() + Path(cert).read_bytes())

    certificates: tuple[dict[str, Any], ...] = ({"cert": cert, "key": key}, {"cert": str(both)})

    async def story(member: Member) -> None:
        for given in certificates:
            store = await open_etcd(
                member.endpoint, tls=True, ca_cert=authority.cert, attempt_s=PATIENCE_S, **given
            )
            await store.put("/t/", b"1")
            await store.close()
        with pytest.raises(Unclear, match="wants a certificate"):
            await open_etcd(member.endpoint, tls=True, ca_cert=authority.cert)

    on_tls(authority, story, is_mutual=True)


def test_tls_to_a_server_without_it_is_unclear() -> None:
    async def run() -> None:
        async with cluster(1, arguments=FAST) as [member]:
            with pytest.raises(Unclear):
                await open_etcd(member.endpoint, tls=True, attempt_s=0.5)

    asyncio.run(run())


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    wrong: tuple[dict[str, Any], ...] = (
        {"ca_cert": str(bad)},
        {"cert": str(bad)},
        {"ca_cert": str(tmp_path / "missing.pem")},
    )
    for options in wrong:
        with pytest.raises(Refused, match=r"bad\.pem|missing\.pem"):
            asyncio.run(open_etcd("127.0.0.1:1", tls=True, **options))


# Users and passwords

ADD_ROLE = Call("Auth/RoleAdd", "AuthRoleAdd")
ADD_USER = Call("Auth/UserAdd", "AuthUserAdd")
GRANT_ROLE = Call("Auth/UserGrantRole", "AuthUserGrantRole")
ENABLE = Call("Auth/AuthEnable", "AuthEnable")


def with_users(story: Callable[[Member], Awaitable[None]]) -> None:
    """Run a story with a server that knows ``root`` (password ``secret``) and ``guest``, who may do nothing."""

    async def run() -> None:
        async with asyncio.timeout(2 * PATIENCE_S), cluster(1, arguments=FAST) as [member]:
            session = await open_session(member.endpoint, attempt_s=PATIENCE_S)
            for call, request in (
                (ADD_ROLE, ADD_ROLE.request(name="root")),
                (ADD_USER, ADD_USER.request(name="root", password="secret")),
                (ADD_USER, ADD_USER.request(name="guest", password="guest")),
                (GRANT_ROLE, GRANT_ROLE.request(user="root", role="root")),
                (ENABLE, ENABLE.request()),
            ):
                await session.ask(call, request, is_repeatable=False)
            await session.close()
            await story(member)

    asyncio.run(run())


async def as_root(member: Member) -> EtcdV3Store:
    return await open_etcd(member.endpoint, user="root", password="secret", attempt_s=PATIENCE_S)


def test_a_user_logs_in_and_others_are_refused() -> None:
    async def story(member: Member) -> None:
        store = await as_root(member)
        start = await store.put("/t/", b"1", lease=await store.grant(30))
        assert (await anext(aiter(store.watch("/t/", start)))).revision == start
        await store.close()
        with pytest.raises(Refused, match="user and a password"):
            await open_etcd(member.endpoint, attempt_s=PATIENCE_S)
        with pytest.raises(Refused, match="authentication failed"):
            await open_etcd(member.endpoint, user="root", password="wrong", attempt_s=PATIENCE_S)
        with pytest.raises(Refused, match="does not permit"):
            await open_etcd(member.endpoint, user="guest", password="guest", attempt_s=PATIENCE_S)

    with_users(story)


def test_a_role_that_covers_the_keys_of_jobs_alone_is_enough() -> None:
    async def story(member: Member) -> None:
        session = await open_session(member.endpoint, user="root", password="secret", attempt_s=PATIENCE_S)
        for call, request in (
            (ADD_ROLE, ADD_ROLE.request(name="jobs")),
            (GRANT_ROLE, GRANT_ROLE.request(user="guest", role="jobs")),
        ):
            await session.ask(call, request, is_repeatable=False)
        permission = ("role", "grant-permission", "jobs", "readwrite", "/phalanx/", "--prefix")
        as_root = ("--endpoints", member.endpoint, "--user", "root:secret")
        # Two and five seconds, else.
        patient = (f"--dial-timeout={PATIENCE_S}s", f"--command-timeout={PATIENCE_S}s")
        control = Path(find_etcd()).with_name("etcdctl")
        process = await asyncio.create_subprocess_exec(
            control, *as_root, *patient, *permission, stdout=subprocess.DEVNULL
        )
        assert await process.wait() == 0
        await session.close()
        store = await open_etcd(member.endpoint, user="guest", password="guest", attempt_s=PATIENCE_S)
        assert await store.put("/phalanx/job/a", b"1")
        await store.close()
        with pytest.raises(Refused, match="does not permit"):
            await open_etcd(
                member.endpoint, user="guest", password="guest", prefix="/elsewhere", attempt_s=PATIENCE_S
            )

    with_users(story)


def test_a_token_that_the_server_has_forgotten_is_replaced_under_way() -> None:
    async def story(member: Member) -> None:
        store = await as_root(member)
        lease = await store.grant(60)
        start = await store.put("/t/", b"1", lease=lease)
        watch = store.watch("/t/", start)
        assert (await anext(aiter(watch))).revision == start
        member.kill()
        member.start()
        await serving([member], user="root", password="secret")
        # The first calls all at once: they need one new token, and each is done once.
        keys = [f"/t/{number}" for number in range(20)]
        await asyncio.gather(store.renew(lease), *(store.put(key, b"") for key in keys))
        assert {item.version for item in (await store.list("/t/")).items} == {1}
        found = [change.kv.key for _ in keys for change in (await anext(aiter(watch))).changes]
        assert sorted(found) == sorted(keys)
        await store.close()

    with_users(story)


def test_a_watch_that_is_not_permitted_is_refused() -> None:
    async def story(member: Member) -> None:
        root = await as_root(member)
        await root.close()
        session = await open_session(member.endpoint, user="root", password="secret", attempt_s=PATIENCE_S)
        store = EtcdV3Store(session)
        session._user, session._password, session._token = (
            "guest",
            "guest",
            None,
        )  # permissions were taken away
        with pytest.raises(Refused, match="permit"):
            await anext(aiter(store.watch("/t/", 1)))
        await store.close()

    with_users(story)


def test_users_where_none_are_needed_are_no_trouble() -> None:
    async def run() -> None:
        async with cluster(1, arguments=FAST) as [member]:
            store = await as_root(member)
            await store.put("/t/", b"")
            await store.close()

    asyncio.run(run())
