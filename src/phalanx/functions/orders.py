"""The order: what the launching program writes once, and every worker reads.

Pickles first (the call that all share, then arguments of single ranks), and behind them one JSON object that says where
each is, and what has to be true before any of them can be read. Its offset is an argument of the worker.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import IO, Any

__all__ = ["read_part", "read_terms", "terms_of"]


def terms_of(
    *,
    version: list[int],
    by_value: bool,
    answers: list[str],
    call: tuple[int, int],
    own_arguments: dict[int, tuple[int, int]],
    preparation: dict[str, Any],
    sources: dict[str, str],
    root: str,
    exchange: dict[str, Any] | None,
) -> bytes:
    """The JSON at the end of an order.

    ``version`` is the major and minor version of the Python that wrote the pickles; ``by_value``: cloudpickle did.
    ``answers`` are paths by local rank; ``call`` and ``own_arguments`` places of pickles, (offset, length).
    ``preparation`` is the standard library's, for ``multiprocessing.spawn.prepare``. ``sources`` are texts of files
    that are on no disk, for tracebacks. ``root`` is a folder in which phalanx is. ``exchange``: see ``exchange.py``.
    """
    return json.dumps(
        {
            "version": version,
            "by_value": by_value,
            "answers": answers,
            "call": call,
            "own_arguments": own_arguments,
            "preparation": preparation,
            "sources": sources,
            "root": root,
            "exchange": exchange,
        }
    ).encode("ascii")


def read_terms(file: IO[bytes], offset: int) -> dict[str, Any]:
    """What ``terms_of`` made. Raises ``ValueError`` when it is not whole."""
    file.seek(offset)
    terms: dict[str, Any] = json.loads(file.read())
    return terms


def read_part(file: IO[bytes], place: tuple[int, int]) -> Any:
    """The object of one pickle; runs whatever code its classes have."""
    import pickle

    file.seek(place[0])
    return pickle.load(file)
