"""What a node brings to a job of several nodes: its membership, the job's name in keys, the job's fingerprint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.rendezvous.settings import MembershipSettings

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions
    from phalanx.launcher.rendezvous.conf import Conf

__all__ = ["digest", "fingerprint", "key_part", "membership_of", "run_id_of"]


def membership_of(options: RunOptions, conf: Conf, **fixed: Any) -> MembershipSettings:
    """What this node brings; ``fixed`` is what a backend knows better."""
    usual: dict[str, Any] = {
        "run_id": key_part(options.run_id or ""),
        "node_id": os.urandom(8).hex(),
        "host": os.uname().nodename,
        "slots": options.nproc,
        "role": options.role,
        "min_nodes": options.min_nodes,
        "max_nodes": options.max_nodes,
        "order_hint": options.node_rank,
        "topology": conf.topology,
        "local_addr": options.local_addr,
        "boot_id": _boot_id(),
        "ttl_s": conf.ttl_s,
        "last_call_s": conf.last_call_timeout,
        "join_timeout_s": conf.join_timeout or conf.timeout or 600.0,
        "store_timeout_s": conf.store_timeout,
        "growth": conf.join_policy,
        "drain_s": options.grace_s,
        "exit_barrier_s": options.exit_barrier_s,
        "straggler_s": options.straggler_s,
        "exclude_for_s": options.exclude_for_s,
    }
    return MembershipSettings(**{**usual, **fixed})


def key_part(run_id: str) -> str:
    """The run id as one part of a key, so that no job's keys begin like another's."""
    return run_id.replace("%", "%25").replace("/", "%2F")


def run_id_of(part: str) -> str:
    """The run id of which that is the part."""
    return part.replace("%2F", "/").replace("%25", "%")


def _boot_id() -> str:
    """The running kernel and the network namespace: who shares both reaches our loopback address."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:  # no proc: nobody can be sure to share this machine
        return os.urandom(16).hex()


def fingerprint(options: RunOptions) -> str:
    """What tells jobs without an id apart: sha256 of the number of nodes, the program and its arguments.

    Of a function its name: the arguments of its workers are descriptors of the program that launched it on this node.
    """
    from phalanx.functions import worker_file

    is_function = options.entrypoint == worker_file()
    program = [options.name or ""] if is_function else [options.entrypoint, *options.args]
    return digest([options.min_nodes, options.max_nodes, *program])


def digest(words: Sequence[int | str]) -> str:
    """A name for these words, the same on every node: sha256 in hexadecimal digits."""
    import json
    from hashlib import sha256

    return sha256(json.dumps(words).encode()).hexdigest()
