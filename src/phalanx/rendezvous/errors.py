"""What a rendezvous raises. The names and the tree are torchelastic's, so that ``except`` clauses keep working.

RendezvousError
├── RendezvousClosedError         the job is over: no round will ever form again
├── RendezvousTimeoutError        no round formed within the join timeout
├── RendezvousConnectionError     the store, or the backend, cannot be reached
├── RendezvousStateError          what the store holds is not ours, or is damaged
└── RendezvousGracefulExitError   this node was a spare, and the job ended well without it: no failure
"""

from __future__ import annotations

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


class RendezvousError(Exception):
    """Base of what a rendezvous raises.

    >>> issubclass(RendezvousTimeoutError, RendezvousError)
    True
    """


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: this job will have no further round.

    >>> isinstance(RendezvousClosedError("the job is over"), RendezvousError)
    True
    """


class RendezvousTimeoutError(RendezvousError):
    """No round formed in time. The message says who was there and who was missing.

    >>> isinstance(RendezvousTimeoutError("n1 was there, n2 was missing"), RendezvousError)
    True
    """


class RendezvousConnectionError(RendezvousError):
    """The store or backend could not be reached, or refused us.

    >>> isinstance(RendezvousConnectionError("n1:29400 refused us"), RendezvousError)
    True
    """


class RendezvousStateError(RendezvousError):
    """The backend holds something that is no state of ours.

    >>> isinstance(RendezvousStateError("no state of ours"), RendezvousError)
    True
    """


class RendezvousGracefulExitError(RendezvousError):
    """This node was never needed and the job is over. It is raised to leave ``next_rendezvous``, and is no failure.

    >>> isinstance(RendezvousGracefulExitError("never needed"), RendezvousError)
    True
    """
