"""What etcd's failures mean to a caller: was nothing done, may something have been, or is asking again of no use.

etcd tells its errors apart by sentence; the gRPC code is only a class of them. Unknown ones count as unclear, for that
is never wrong.
"""

from __future__ import annotations

from grpclib.const import Status

from phalanx.store.port import LeaseExpired, Refused

__all__ = ["LeaseExists", "NotDone", "Silent", "StaleToken", "Untrusted", "meaning"]


class NotDone(Exception):
    """Certain that this attempt changed nothing, nor will: another member may be asked."""


class Untrusted(NotDone):
    """The server's certificate is not one that we trust."""


class Silent(Exception):
    """No answer, or one that says so: a write of this attempt may have been applied, or may yet be."""


class StaleToken(Exception):
    """The attempt was turned away for want of a valid token: log in, and ask again."""


class LeaseExists(Exception):
    """The lease of that id has been granted before."""


# In this order, by a part of the sentence. etcd's texts have been stable since 3.0.
_SENTENCES: tuple[tuple[str, type[Exception]], ...] = (
    ("requested lease not found", LeaseExpired),
    ("lease already exists", LeaseExists),
    ("invalid auth token", StaleToken),
    ("user name is empty", StaleToken),
    ("user name not found", StaleToken),  # the users were made anew, and the token is of before
    ("revision of auth store is old", StaleToken),
    ("no leader", NotDone),  # turned away at the door because of "hasleader"
    ("too many requests", NotDone),
    ("not supported for learner", NotDone),
    ("not capable", NotDone),
)

_FINAL = {
    Status.INVALID_ARGUMENT: "etcd refuses the request",
    Status.FAILED_PRECONDITION: "etcd refuses the request",
    Status.OUT_OF_RANGE: "etcd refuses the request",
    Status.PERMISSION_DENIED: "etcd does not permit it to this user",
    Status.RESOURCE_EXHAUSTED: "etcd has no room for it",
    Status.UNIMPLEMENTED: "What answers is no etcd of version 3",
    Status.DATA_LOSS: "etcd has lost data",
}


def meaning(status: Status, message: str | None) -> Exception:
    """The exception that an error status of gRPC stands for."""
    text = (message or status.name.lower().replace("_", " ")).removeprefix("etcdserver: ")
    for part, kind in _SENTENCES:
        if part in text:
            return kind(f"The lease has ended ({text}).") if kind is LeaseExpired else kind(text)
    if status is Status.UNAUTHENTICATED:
        return StaleToken(text)
    if status in _FINAL:
        return Refused(f"{_FINAL[status]}: {text}.")
    return Silent(text)
