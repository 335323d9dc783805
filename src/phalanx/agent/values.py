"""The old place of ``phalanx.store.values``, until the agent's node imports it from there."""

from __future__ import annotations

from phalanx.store.values import SharedValues, ValueRefused, ValuesUnreachable

__all__ = ["SharedValues", "ValueRefused", "ValuesUnreachable"]
