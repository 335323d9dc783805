"""Which failures say no more than that another process is gone: broken connections, aborted collectives. Pure.

Decided by the type of the exception and by phrases that libraries really raise;
``tests/agent/verdict/symptoms_seen.py`` has them as they were seen. A user's own exception that mentions a library, or
a library that refuses what it was asked for (a wrong shape, a port that is taken), is none.
"""

from __future__ import annotations

import re

__all__ = ["has_symptom", "is_symptom"]

# Python's own words for it: no text is needed.
_BROKEN = frozenset({"BrokenPipeError", "ConnectionAbortedError", "ConnectionResetError"})
# What torch, gloo, NCCL, and sockets below them raise. Subclasses that somebody else has made are somebody else's.
_OF_LIBRARIES = frozenset(
    {
        "ConnectionError",
        "DistBackendError",
        "DistError",
        "DistNetworkError",
        "DistStoreError",
        "OSError",
        "RuntimeError",
        "TimeoutError",
    }
)
_PHRASES = (
    # sockets, as the kernel names the error
    r"connection reset by peer",
    r"broken pipe",
    r"connection timed out",
    r"no route to host",
    r"software caused connection abort",
    # gloo
    r"connection closed by peer",
    r"remote peer closed the connection",
    r"timed out waiting \d+ms for (recv|send) operation to complete",
    r"application timeout caused pair closure",
    r"connectfullmesh failed with",
    r"failed to pass monitoredbarrier",
    # the store of torch, whose host is gone, or never came
    r"connection was likely closed",
    r"the client socket has (timed out|failed to connect)",
    r"wait timeout after \d+ms, keys:",
    r"timed out after \d+ seconds waiting for clients",
    # NCCL
    r"remote process exited or there was a network error",
    r"ncclremoteerror",
    r"connection closed by remote peer",
    r"connect to \S+<\d+> (failed|returned)",
    r"nccl communicator was aborted",
    r"watchdog caught collective operation timeout",
)


def is_symptom(exception: str, text: str) -> bool:
    """Whether an exception of this type (``RuntimeError``, ``torch.distributed.DistNetworkError``) is one."""
    module, _, kind = exception.rpartition(".")
    if module and not module.startswith("torch"):  # another library's, which speaks to a server of its own
        return False
    return kind in _BROKEN or (kind in _OF_LIBRARIES and has_symptom(text))


def has_symptom(text: str) -> bool:
    """Whether a text has one of these phrases: for the last words of who gave up without an exception."""
    return (
        re.search("|".join(_PHRASES), text.lower()) is not None
    )  # compiled when it is needed, and then kept
