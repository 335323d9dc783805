"""What a rendezvous handler is made from. Names and conversions are torchelastic's: plug-ins read them."""

from __future__ import annotations

from typing import Any

__all__ = ["RendezvousParameters"]

_YES = frozenset({"1", "true", "t", "yes", "y"})
_NO = frozenset({"0", "false", "f", "no", "n"})


class RendezvousParameters:
    """The parameters of one node's handler.

    ``endpoint`` is usually ``host[:port]``; ``local_addr`` is the address that others are told, if the user gave one;
    all further keywords (``--rdzv-conf``) are kept in ``config``, untouched. Raises ``ValueError`` for an empty
    backend and for limits that no job can meet.

    >>> parameters = RendezvousParameters("c10d", "n1:29400", "fit", 1, 2, timeout="60")
    >>> parameters.get_as_int("timeout"), parameters.get("is_host")
    (60, None)
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("a rendezvous needs the name of its backend, and it is empty")
        if min_nodes < 1:
            raise ValueError(f"a job needs at least one node, and min_nodes is {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes is {max_nodes}, which is less than min_nodes, {min_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = kwargs

    def get(self, key: str, default: Any = None) -> Any:
        """Return the configured value as it was given, or the default."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the value as a truth value: a bool, 0 or 1, or one of 1/0, true/false, t/f, yes/no, y/n in any case.

        The default is read by the same rules. Raises ``ValueError`` for anything else.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
        if word in _YES:
            return True
        if word in _NO:
            return False
        raise ValueError(f"rendezvous option {key!r} is yes or no, not {value!r}")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the value as a whole number. Raises ``ValueError`` when it is none."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"rendezvous option {key!r} is a whole number, not {value!r}") from None
