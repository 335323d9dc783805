"""The meeting of several nodes: one function for each backend, which picks the store and checks what it needs.

| backend | store |
|---|---|
| static | hosted by node 0 on MASTER_PORT + 1; the members are known beforehand |
| c10d | hosted by whichever agent can bind the endpoint; three endpoints or five: an etcd cluster of the agents' own |
| etcd, etcd-v2 | etcd servers that run already |
| file, or c10d with store_type=file | a shared folder |
| a plug-in's name | none: its handler meets |
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any

from phalanx.launcher.plugins import BACKENDS
from phalanx.launcher.rendezvous.conf import Conf
from phalanx.launcher.rendezvous.endpoints import Endpoint, is_loopback, read_endpoints
from phalanx.launcher.rendezvous.meeting import Meeting, MeetingError, meeting_of_one, read_settings
from phalanx.launcher.rendezvous.members import digest, fingerprint, key_part, membership_of, run_id_of
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.store.port import Refused

if TYPE_CHECKING:
    import ssl

    from phalanx.launcher.options import RunOptions
    from phalanx.rendezvous.handler import RendezvousHandler
    from phalanx.store.etcd.cluster import EtcdCluster
    from phalanx.store.port import Store

__all__ = ["meeting_of_several"]

MASTER_PORT = 29500  # torchrun's, for static
C10D_PORT = 29400
ETCD_PORT = 2379

_Warnings = tuple[tuple[str, str], ...]


def meeting_of_several(options: RunOptions) -> Meeting:
    """The meeting of a job of several nodes. Raises ``MeetingError``."""
    backend = options.rdzv_backend
    if backend not in BACKENDS:
        return _plug_in(options)
    conf, warnings = read_settings(options)
    if backend == "static":
        return _static(options, conf, warnings)
    if options.min_nodes == 1 and backend == "c10d" and options.rdzv_endpoint.endswith(":0"):
        # torchrun's documentation starts jobs so; port 0 is a free one, which nobody else can know.
        return meeting_of_one(options)
    for name in ("master_addr", "master_port"):
        if getattr(options, name) is not None:
            warnings += ((name, _NO_FIXED_MASTER[name].format(backend)),)
    if backend == "file" or (backend == "c10d" and conf.store_type == "file"):
        return _shared_folder(options, conf, warnings)
    if backend in ("etcd", "etcd-v2"):
        return _etcd(options, conf, warnings)
    return _c10d(options, conf, warnings)


_STATIC_RANGE = "with the static backend all {} nodes are waited for, and none may leave"
_NO_FIXED_MASTER = {
    "master_addr": "has no effect with {} and several nodes, any of which may have rank 0; see --local-addr",
    "master_port": "has no effect with {} and several nodes; --rdzv-conf master_port_range=A-B limits the choice",
}
_NO_SECRET = (
    "no secret is set (PHALANX_SECRET or --secret-file): whoever knows this command line can join at {}"
)


def _static(options: RunOptions, conf: Conf, warnings: _Warnings) -> Meeting:
    size = options.max_nodes
    if options.min_nodes < size:
        warnings += (("nnodes", _STATIC_RANGE.format(size)),)
    rank = options.node_rank or 0
    if rank >= size:
        raise MeetingError(
            "node_rank", f"there is no node {rank} among {size}; ranks go from 0 to {size - 1}"
        )
    given = _endpoints(options)
    if not given and options.master_addr is None and size > 1:
        sentence = (
            "not given: nodes meet on 127.0.0.1, which this machine alone can reach; name node 0's address"
        )
        warnings += (("rdzv_endpoint", sentence),)
    if len(given) > 1:
        raise MeetingError("rdzv_endpoint", "the static backend has one endpoint, rank 0's address and port")
    master = given[0] if given else Endpoint(options.master_addr or "127.0.0.1")
    master = master.with_default(MASTER_PORT if options.master_port is None else options.master_port)
    assert master.port is not None
    if not master.port:
        raise MeetingError("master_port" if not given else "rdzv_endpoint", _NO_PORT_0)
    store = Endpoint(master.host, conf.store_port or master.port + 1)
    if store.port in (master.port, 65536):
        raise MeetingError(
            "rdzv_conf", "store_port must be another port than MASTER_PORT, on which rank 0 listens"
        )
    membership = membership_of(
        options,
        conf,
        is_static=True,
        node_id=f"rank-{rank}",  # the store holds each name once: two agents cannot have one rank
        min_nodes=size,
        order_hint=rank,
        master_addr=master.host,
        master_port=master.port,
        join_timeout_s=conf.join_timeout or conf.timeout or 900.0,  # torchrun's launcher waits so long
        growth=Growth.NEVER,
    )
    return _hosted(options, conf, warnings, membership, store, is_host=rank == 0)


def _c10d(options: RunOptions, conf: Conf, warnings: _Warnings) -> Meeting:
    endpoints = tuple(one.with_default(C10D_PORT) for one in _endpoints(options))
    if not endpoints:
        endpoints = (Endpoint("localhost", C10D_PORT),)
        warnings += (
            ("rdzv_endpoint", f"not given: nodes meet on {endpoints[0]}, which this machine alone can reach"),
        )
    _check_ports(endpoints)
    if len(endpoints) > 1:
        return _cluster(options, conf, warnings, endpoints)
    return _hosted(options, conf, warnings, membership_of(options, conf), endpoints[0], is_host=conf.is_host)


def _hosted(
    options: RunOptions,
    conf: Conf,
    warnings: _Warnings,
    membership: MembershipSettings,
    endpoint: Endpoint,
    *,
    is_host: bool | None,
) -> Meeting:
    # A job without an id gets one from the host of its store.
    learnt = [] if options.run_id is None else [options.run_id]
    key = None if options.run_id is None else key_part(options.run_id)
    job = fingerprint(options)
    server_tls, client_tls = _tls(conf)

    async def open_store() -> Store:
        from phalanx.store.hosting import open_hosted

        assert endpoint.port is not None
        store = await open_hosted(
            endpoint.host,
            endpoint.port,
            secret=options.secret,
            is_host=is_host,
            run_id=key,
            fingerprint=job,
            server_tls=server_tls,
            client_tls=client_tls,
        )
        if key is None:
            learnt[:] = [run_id_of(store.run_id)]
        return store

    is_open = options.secret is None and not is_loopback(endpoint.host)
    return Meeting(
        membership=membership,
        open_store=open_store,
        run_id=lambda: learnt[0] if learnt else "",
        master_port_range=conf.master_port_range,
        warnings=warnings,
        notices=(_NO_SECRET.format(endpoint),) if is_open else (),
    )


def _etcd(options: RunOptions, conf: Conf, warnings: _Warnings) -> Meeting:
    run_id = _given_run_id(options, "jobs share an etcd")
    endpoints = tuple(one.with_default(ETCD_PORT) for one in _endpoints(options, schemes=("http", "https")))
    endpoints = endpoints or (Endpoint("localhost", ETCD_PORT),)
    _check_ports(endpoints)
    if len({one.scheme for one in endpoints}) > 1:
        raise MeetingError("rdzv_endpoint", "some endpoints are https and others are not; write one protocol")
    is_tls = conf.protocol == "https" or endpoints[0].scheme == "https" or conf.ca_cert is not None
    if (conf.ssl_cert is None) != (conf.ssl_cert_key is None):
        raise MeetingError("rdzv_conf", "ssl_cert and ssl_cert_key go together; one of them is missing")
    password = _password(conf)

    async def open_store() -> Store:
        from phalanx.store.etcd import open_etcd

        return await open_etcd(
            [str(Endpoint(one.host, one.port)) for one in endpoints],
            tls=is_tls,
            ca_cert=conf.ca_cert,
            cert=conf.ssl_cert,
            key=conf.ssl_cert_key,
            user=conf.user,
            password=password,
            prefix=conf.etcd_prefix,
        )

    return _shared(options, conf, warnings, run_id, open_store)


def _cluster(
    options: RunOptions, conf: Conf, warnings: _Warnings, endpoints: tuple[Endpoint, ...]
) -> Meeting:
    if len(endpoints) % 2 == 0:
        raise MeetingError(
            "rdzv_endpoint",
            f"{len(endpoints)} endpoints cannot outvote one another; name one, three or five hosts",
        )
    if any(Endpoint(one.host, (one.port or 0) + 1) in endpoints for one in endpoints):
        raise MeetingError(
            "rdzv_endpoint",
            "two endpoints of one host need ports that are two apart: members also use the next one",
        )
    run_id = _given_run_id(options, "several hosts keep the job's data")
    names = [str(one) for one in endpoints]
    folder = conf.data_dir or f"{_ours()}/{digest([run_id, *names])[:16]}"
    opened: list[
        EtcdCluster
    ] = []  # our member runs on while there is no majority yet, and is found here again

    async def open_store() -> Store:
        from phalanx.store.etcd.cluster import EtcdCluster

        if not opened:
            if conf.data_dir is None:
                _make_ours()
            opened.append(EtcdCluster(names, job=run_id, folder=folder, secret=options.secret))
        return await opened[0].open()

    def forget() -> None:
        for cluster in opened:
            cluster.forget()

    return _shared(options, conf, warnings, run_id, open_store, forget=forget)


def _ours() -> str:
    """Where members' data is, if nobody says: on a disk of this machine, where an agent that comes back finds it."""
    return f"/var/tmp/phalanx-{os.geteuid()}"


def _make_ours() -> None:
    with suppress(FileExistsError):
        os.mkdir(_ours(), 0o700)
    found = os.lstat(_ours())
    if found.st_uid != os.geteuid() or not S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise Refused(
            f"{_ours()} may be written by others; remove it, or name another folder: --rdzv-conf data_dir=FOLDER"
        )


def _shared_folder(options: RunOptions, conf: Conf, warnings: _Warnings) -> Meeting:
    run_id = _given_run_id(options, "jobs share a folder")
    if not options.rdzv_endpoint:
        raise MeetingError("rdzv_endpoint", "not given; name a folder that every node sees")
    folder = os.path.abspath(os.path.expanduser(options.rdzv_endpoint))
    if not os.path.isdir(os.path.dirname(folder)):
        raise MeetingError(
            "rdzv_endpoint", f"there is no folder {os.path.dirname(folder)!r} to share a folder in"
        )
    if os.path.isfile(folder):  # torchrun's file store is one file, which a script may have made beforehand
        folder += ".phalanx"

    async def open_store() -> Store:
        from phalanx.store.file import open_file

        return await open_file(folder)

    return _shared(options, conf, warnings, run_id, open_store)


def _shared(
    options: RunOptions,
    conf: Conf,
    warnings: _Warnings,
    run_id: str,
    open_store: Callable[[], Awaitable[Store]],
    *,
    forget: Callable[[], None] | None = None,
) -> Meeting:
    """The meeting of a job in a store that other jobs use, too, and that was there before it."""
    is_new = [True]

    async def open_cleared() -> Store:
        store = await open_store()
        if is_new:
            from phalanx.launcher.rendezvous.ended import clear_ended_job

            try:
                await clear_ended_job(store, key_part(run_id))
            except BaseException:
                await store.close()
                raise
            is_new.clear()
        return store

    return Meeting(
        membership=membership_of(options, conf),
        open_store=open_cleared,
        run_id=lambda: run_id,
        master_port_range=conf.master_port_range,
        warnings=warnings,
        forget=forget,
    )


def _plug_in(options: RunOptions) -> Meeting:
    """A handler that somebody else has written gets the words as torchrun would give them, the settings unread."""
    run_id = options.run_id or fingerprint(options)[:16]

    def make_handler() -> RendezvousHandler:
        from phalanx.rendezvous.parameters import RendezvousParameters
        from phalanx.rendezvous.registry import get_rendezvous_handler

        conf: dict[str, Any] = {"timeout": 900, **options.rdzv_conf}  # as torchrun's launcher adds it
        if options.sent_handler is not None:
            from phalanx.launcher.hosting.sent_objects import register_sent

            conf = register_sent(options.sent_handler, options.rdzv_backend)
        return get_rendezvous_handler(
            RendezvousParameters(
                options.rdzv_backend,
                options.rdzv_endpoint,
                run_id,
                options.min_nodes,
                options.max_nodes,
                options.local_addr,
                **conf,
            )
        )

    async def no_store() -> Store:
        raise Refused(f"The rendezvous handler {options.rdzv_backend!r} has no store of ours.")

    return Meeting(
        membership=membership_of(options, Conf(), run_id=run_id),
        open_store=no_store,
        run_id=lambda: run_id,
        make_handler=make_handler,
    )


# What several backends share

_NO_PORT_0 = "port 0 is another free port on each node; write one that all of them use"


def _endpoints(options: RunOptions, *, schemes: tuple[str, ...] = ()) -> tuple[Endpoint, ...]:
    try:
        found = read_endpoints(options.rdzv_endpoint)
    except ValueError as reason:
        raise MeetingError("rdzv_endpoint", str(reason)) from None
    for one in found:
        if one.scheme and one.scheme not in schemes:
            raise MeetingError("rdzv_endpoint", f"write HOST:PORT, without {one.scheme}://")
    return found


def _check_ports(endpoints: tuple[Endpoint, ...]) -> None:
    if any(not one.port for one in endpoints):
        raise MeetingError("rdzv_endpoint", _NO_PORT_0)


def _given_run_id(options: RunOptions, why: str) -> str:
    if options.run_id is None:
        raise MeetingError("rdzv_id", f"not given, and {why}; give every node of the job the same id")
    return options.run_id


def _tls(conf: Conf) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    if conf.protocol != "https" and not (conf.ca_cert or conf.ssl_cert or conf.ssl_cert_key):
        return None, None
    if not (conf.ca_cert and conf.ssl_cert and conf.ssl_cert_key):
        raise MeetingError("rdzv_conf", "TLS between agents needs ca_cert, ssl_cert and ssl_cert_key")
    from phalanx.launcher.rendezvous.tls import hosted_contexts

    try:
        return hosted_contexts(ca_cert=conf.ca_cert, cert=conf.ssl_cert, key=conf.ssl_cert_key)
    except OSError as error:
        raise MeetingError("rdzv_conf", f"TLS is not possible with these files: {error}") from None


def _password(conf: Conf) -> str | None:
    if conf.user is None:
        return None
    if conf.password_file is None:
        raise MeetingError("rdzv_conf", "user needs password_file, a file with the password")
    try:
        with open(conf.password_file) as file:
            return file.read().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise MeetingError("rdzv_conf", f"password_file cannot be read: {error}") from None
