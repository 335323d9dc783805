"""The words and signals that options have: written once for every front end, in a module that costs nothing to load."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2

__all__ = ["BACKENDS", "CHOICES", "EVENT_HANDLERS", "PASS_SIGNALS", "STOP_SIGNALS"]

BACKENDS = ("static", "c10d", "etcd", "etcd-v2", "file")
"""Rendezvous backends that are no plug-ins."""
EVENT_HANDLERS = ("console", "dynamic_rendezvous", "null")
"""Handlers of events that are no plug-ins."""
CHOICES: dict[str, tuple[str, ...]] = {
    "restart_scope": ("group", "worker"),
    "start_method": ("spawn", "fork", "forkserver"),
    "numa_binding": ("node", "socket", "exclusive", "core-complex"),
}
"""By the field of ``RunOptions``, whose type says the same to a type checker."""
STOP_SIGNALS = (int(SIGTERM), int(SIGINT), int(SIGHUP), int(SIGQUIT))
"""What stops a job when nobody says otherwise."""
PASS_SIGNALS = (int(SIGUSR1), int(SIGUSR2))
"""What is passed on to workers, whatever else is."""
