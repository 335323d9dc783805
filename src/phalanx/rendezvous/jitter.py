"""Chance without a source of randomness: a number that a text decides. Pure."""

from __future__ import annotations

from binascii import crc32

__all__ = ["jitter"]


def jitter(text: str) -> float:
    """From 0 to 1. A node's id in the text is random, so that nodes which failed together do not come back together."""
    return crc32(text.encode()) / 0xFFFFFFFF
