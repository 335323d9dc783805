"""The benchmark of settling measures what it says: agents meet over a real store, with so many messages for each."""

from __future__ import annotations

from bench.settle import hosted


def test_nodes_settle_and_settle_again_and_messages_per_node_do_not_grow() -> None:
    few, many = hosted(4), hosted(32)
    assert few.again_s is not None
    assert many.again_s is not None
    assert few.messages is not None
    assert many.messages is not None
    assert many.messages <= few.messages + 5
