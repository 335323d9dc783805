"""What is printed because it was asked for: pages, tables, scripts. Loads only then."""

from __future__ import annotations

import os
import sys

__all__ = ["show"]


def show(text: str) -> None:
    """Print the text; a reader that has seen enough (``| head``) is no mistake of anybody."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(
            nowhere, sys.stdout.fileno()
        )  # or the interpreter tries the rest again when it ends, and complains
        os.close(nowhere)
