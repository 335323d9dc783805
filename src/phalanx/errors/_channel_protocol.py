"""What both ends of the worker channel are written by. Constants, and no import: each worker loads it."""

__all__ = ["AGREEMENTS", "CAUSES_WITHOUT_A_STEP", "LINE_BYTES_MAX", "STOP", "VERSION"]

VERSION = 1
LINE_BYTES_MAX = 1024 * 1024

AGREEMENTS = "phalanx/agree/"
"""How the keys begin, among the values of a round, under which its ranks agree on steps."""

STOP = "stop"
"""The kind of the agreement on where to stop, and the id of the one request that it is about."""

CAUSES_WITHOUT_A_STEP = frozenset(("failure", "loss"))
"""Of stops: some rank has ended, or is out of reach, and will come to no step. See ``StopAsked.cause`` for all."""
