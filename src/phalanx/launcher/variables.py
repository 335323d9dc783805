"""Environment variables that a program cannot do without."""

from __future__ import annotations

import os

__all__ = ["get_env_variable_or_raise"]


def get_env_variable_or_raise(env_name: str) -> str:
    """Return the value of an environment variable. Raises ``ValueError`` when it is not set.

    >>> import os
    >>> os.environ["DATA_DIR"] = "/data"
    >>> get_env_variable_or_raise("DATA_DIR")
    '/data'
    """
    value = os.environ.get(env_name)
    if value is None:
        raise ValueError(f"Environment variable {env_name} expected, but not set")
    return value
