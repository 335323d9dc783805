"""The keys of ``--rdzv-conf``: one row for each, with what it means here. torchelastic's names, units and defaults.

Loads only when a job has several nodes, or when the option was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.records import Struct
from phalanx.rendezvous.settings import Growth

__all__ = ["SETTINGS", "Conf", "Setting", "foreign_keys", "read_conf"]


class Conf(Struct, kw_only=True):
    """``--rdzv-conf``, understood. Times in seconds; None: not given, and there is no one default."""

    join_timeout: float | None = None
    last_call_timeout: float = 30.0
    keep_alive_interval: float = 5.0
    keep_alive_max_attempt: int = 3
    timeout: float | None = None
    store_timeout: float = 60.0
    join_policy: Growth = Growth.NOW
    topology: str = ""
    is_host: bool | None = None
    store_type: str = "tcp"
    store_port: int | None = None
    master_port_range: range | None = None
    protocol: str = "http"
    ca_cert: str | None = None
    ssl_cert: str | None = None
    ssl_cert_key: str | None = None
    user: str | None = None
    password_file: str | None = None
    etcd_prefix: str = ""
    data_dir: str | None = None

    @property
    def ttl_s(self) -> float:
        """The lease of a node: how long it may be silent before it counts as lost."""
        return self.keep_alive_interval * self.keep_alive_max_attempt


class Setting(Struct, kw_only=True):
    """A row. ``field``: its place in ``Conf``; None: a key that is accepted and not needed. ``of``: which backend's."""

    key: str
    read: Callable[[str], Any]
    help: str
    of: str = "all"
    default: str = ""
    field: str | None = None
    torchrun: bool = True


def read_conf(raw: Mapping[str, str]) -> tuple[Conf, tuple[str, ...]]:
    """Return the settings, and a sentence about each unknown key. Raises ``ValueError`` with the rest of one.

    All keys are looked at before.
    """
    known: dict[str, Any] = {}
    unknown, wrong = [], []
    for key, text in raw.items():
        if key in _OPTIONS_OF_THEIR_OWN:  # torchrun dies of these with a TypeError
            wrong.append(f"{key} is no key of it; {_OPTIONS_OF_THEIR_OWN[key]} says it")
            continue
        setting = _BY_KEY.get(key)
        if setting is None:
            unknown.append(f"nobody knows the key {key!r}{_nearest(key)}; it has no effect")
            continue
        try:
            value = setting.read(text)
        except ValueError as reason:
            wrong.append(f"{key} {reason}")
            continue
        if setting.field is not None:
            known[setting.field] = value
    if wrong:
        raise ValueError("; ".join(wrong))
    conf = Conf(**known)
    if conf.ttl_s < 1:  # a scheduler's hiccup is a second; etcd's leases have whole ones
        raise ValueError(
            f"keep_alive_interval times keep_alive_max_attempt is {conf.ttl_s:g} s; a lease lasts 1 s or more"
        )
    return conf, tuple(unknown)


def foreign_keys(raw: Mapping[str, str], backend: str) -> tuple[str, ...]:
    """A sentence about each key that is another backend's."""
    mine = "etcd" if backend == "etcd-v2" else backend
    return tuple(
        f"{key} is for {_BY_KEY[key].of} and has no effect with {backend}"
        for key in raw
        if key in _BY_KEY and _BY_KEY[key].of != "all" and mine not in _BY_KEY[key].of.split(", ")
    )


def _nearest(key: str) -> str:
    import difflib

    found = difflib.get_close_matches(key, _BY_KEY, n=1)
    return f", perhaps {found[0]}" if found else ""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be a time in seconds, not {text!r}")
    return value


def _positive_seconds(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise ValueError("must be more than 0 seconds")
    return value


def _attempts(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise ValueError(f"must be a whole number of 1 or more, not {text[:40]!r}")
    return int(text)


def _yes_or_no(text: str) -> bool:
    word = text.lower()
    if word in ("1", "true", "t", "yes", "y", "on"):
        return True
    if word in ("0", "false", "f", "no", "n", "off"):
        return False
    raise ValueError(f"must be true or false, not {text!r}")


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        word = text.lower()
        if word not in words:
            raise ValueError(f"must be {' or '.join(words)}, not {text!r}")
        return word

    return read


def _growth(text: str) -> Growth:
    try:
        return Growth(text.lower())
    except ValueError:
        words = ", ".join(one.value for one in Growth)
        raise ValueError(f"must be one of {words}, not {text!r}") from None


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ValueError(f"must be a port, not {text!r}")
    return int(text)


def _port_range(text: str) -> range:
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 65536):
        raise ValueError(f"must be two ports as in 29500-29600, not {text!r}")
    return range(int(low), int(high) + 1)


_OPTIONS_OF_THEIR_OWN = {
    "backend": "--rdzv-backend",
    "endpoint": "--rdzv-endpoint",
    "run_id": "--rdzv-id",
    "min_nodes": "--nnodes",
    "max_nodes": "--nnodes",
    "local_addr": "--local-addr",
}

SETTINGS: tuple[Setting, ...] = (
    Setting(
        key="join_timeout",
        read=_positive_seconds,
        default="600, static: 900",
        field="join_timeout",
        help="how long to wait for MIN nodes, at the start and when the job has fallen below; then exit code 75",
    ),
    Setting(
        key="last_call_timeout",
        read=_seconds,
        default="30",
        field="last_call_timeout",
        help="how long to wait for more nodes when MIN are there; not waited for when all expected are",
    ),
    Setting(
        key="keep_alive_interval",
        read=_positive_seconds,
        default="5",
        field="keep_alive_interval",
        help="times keep_alive_max_attempt: the lease, which is how long a node may be silent before it is lost",
    ),
    Setting(
        key="keep_alive_max_attempt",
        read=_attempts,
        default="3",
        field="keep_alive_max_attempt",
        help="see keep_alive_interval",
    ),
    Setting(
        key="store_timeout",
        read=_seconds,
        default="60",
        field="store_timeout",
        torchrun=False,
        help="how long a store that was lost may take to come back; then exit code 75",
    ),
    Setting(
        key="join_policy",
        read=_growth,
        default="now",
        field="join_policy",
        torchrun=False,
        help="when a running job takes newcomers in: now, at-checkpoint or never",
    ),
    Setting(
        key="topology",
        read=str,
        field="topology",
        torchrun=False,
        help="a name of this node's switch or rack; nodes with equal names get adjacent ranks",
    ),
    Setting(
        key="master_port_range",
        read=_port_range,
        field="master_port_range",
        torchrun=False,
        help="ports from which MASTER_PORT is chosen, as 29500-29600",
    ),
    Setting(
        key="timeout",
        read=_positive_seconds,
        field="timeout",
        help="join_timeout, where that is not given",
    ),
    Setting(
        key="store_port",
        of="static",
        read=_port,
        default="MASTER_PORT + 1",
        field="store_port",
        torchrun=False,
        help="port on which node 0 serves the store",
    ),
    Setting(
        key="is_host",
        of="c10d",
        read=_yes_or_no,
        default="who can bind it",
        field="is_host",
        help="whether this agent serves the store",
    ),
    Setting(
        key="store_type",
        of="c10d",
        read=_choice("tcp", "file"),
        default="tcp",
        field="store_type",
        help="file: the endpoint is a shared folder, as with the file backend",
    ),
    Setting(
        key="data_dir",
        of="c10d",
        read=str,
        field="data_dir",
        torchrun=False,
        help="with several endpoints: folder for the data of this host's member; without it one in /var/tmp",
    ),
    Setting(
        key="protocol",
        of="c10d, static, etcd",
        read=_choice("http", "https"),
        default="http",
        field="protocol",
        help="https: TLS",
    ),
    Setting(
        key="ca_cert",
        of="c10d, static, etcd",
        read=str,
        field="ca_cert",
        help="file with the authority that signed the certificates",
    ),
    Setting(
        key="ssl_cert",
        of="c10d, static, etcd",
        read=str,
        field="ssl_cert",
        help="file with this node's certificate",
    ),
    Setting(
        key="ssl_cert_key", of="c10d, static, etcd", read=str, field="ssl_cert_key", help="file with its key"
    ),
    Setting(
        key="user",
        of="etcd",
        read=str,
        field="user",
        torchrun=False,
        help="user name, where the servers want one",
    ),
    Setting(
        key="password_file",
        of="etcd",
        read=str,
        field="password_file",
        torchrun=False,
        help="file with the user's password",
    ),
    Setting(
        key="etcd_prefix",
        of="etcd",
        read=str,
        field="etcd_prefix",
        help="what all keys of the job begin with",
    ),
    Setting(key="cacert", of="etcd", read=str, field="ca_cert", help="as ca_cert"),
    Setting(key="cert", of="etcd", read=str, field="ssl_cert", help="as ssl_cert"),
    Setting(key="key", of="etcd", read=str, field="ssl_cert_key", help="as ssl_cert_key"),
    Setting(
        key="close_timeout",
        read=_seconds,
        help="accepted and not needed: the end of a job is an event, not a wait",
    ),
    Setting(
        key="heartbeat_timeout",
        read=_seconds,
        help="accepted and not needed: a request to the store has 2 s, and is repeated",
    ),
    Setting(
        key="read_timeout",
        read=_seconds,
        help="accepted and not needed: connecting is tried until join_timeout",
    ),
)

_BY_KEY = {setting.key: setting for setting in SETTINGS}
