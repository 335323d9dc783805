"""Who may use a hosted store: the jobs that its host knows the key of. Pure.

With a secret there is one job, the host's. Without one, the key of a job follows from its id, and any job is served:
each sees only its own keys.
"""

from __future__ import annotations

from phalanx.records import Struct
from phalanx.store.wire import Hello

__all__ = ["Admission", "NotAdmitted", "job_prefix"]


class NotAdmitted(Exception):
    """The client will not be served; the message is a sentence for its user."""


class Admission(Struct, kw_only=True):
    """The job of the host."""

    run_id: str
    fingerprint: str = ""
    """What tells jobs without an id apart; empty: nobody may adopt our id."""
    secret: bytes | None = None

    def admit(self, hello: Hello) -> str:
        """The run id of the client's job. Raises ``NotAdmitted``."""
        if not hello.run_id:
            if self.fingerprint and hello.fingerprint == self.fingerprint:
                return self.run_id
            raise NotAdmitted(
                "Another job meets at this endpoint, with other nodes, script or arguments; "
                "give each job an id (--rdzv-id) or an endpoint of its own."
            )
        if self.secret is not None and hello.run_id != self.run_id:
            raise NotAdmitted(
                f"The store at this endpoint serves one job, {self.run_id!r}, because it has a secret; "
                f"{hello.run_id!r} needs an endpoint of its own."
            )
        return hello.run_id


def job_prefix(run_id: str) -> str:
    """What the keys of a job begin with."""
    return f"/phalanx/{run_id}/"
