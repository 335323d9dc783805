"""The file of ``--secret-file``: what the agents of a job prove to each other that they know."""

from __future__ import annotations

__all__ = ["read_secret"]

SECRET_BYTES_MAX = 4096  # a key is 32 bytes; a file that is larger was named by mistake


def read_secret(raw: str) -> bytes:
    """Return what the file holds, without the end of its last line. Its rights are not judged.

    Raises ``ValueError`` with a sentence if it cannot be read, is empty, or too large to be meant.
    """
    try:
        with open(raw, "rb") as file:
            found = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"cannot read the file {raw!r}: {error.strerror}") from None
    if len(found) > SECRET_BYTES_MAX:
        raise ValueError(f"the file {raw!r} is no secret: it has more than {SECRET_BYTES_MAX} bytes")
    found = found.rstrip(b"\r\n")
    if not found:
        raise ValueError(f"the file {raw!r} is empty")
    return found
