"""Whether workers of a job can be restarted one by one; if not, one sentence instead of half of it."""

from __future__ import annotations

from phalanx.agent.spec import JobSpec

__all__ = ["check_scope", "whole_rounds_only"]


def whole_rounds_only(backend: str) -> str:
    """The sentence for a rendezvous handler that somebody else wrote."""
    return (
        f"workers cannot be restarted one by one: the rendezvous handler of the backend {backend!r} knows whole "
        "rounds only; use one of ours (c10d, etcd, file, static), or restart the group"
    )


def check_scope(spec: JobSpec) -> JobSpec:
    """The same, if what it asks for can be had. Raises ``ValueError``."""
    if spec.restart_scope != "worker":
        return spec
    if spec.make_handler is not None:
        raise ValueError(whole_rounds_only(spec.backend))
    if callable(spec.entrypoint) and spec.start_method == "fork":
        raise ValueError(
            "workers cannot be restarted one by one: a worker that is made by fork cannot be started beside others; "
            "use the start method spawn or forkserver, or restart the group"
        )
    return spec
