"""Functions as workers: what runs in the worker, and the forms in which call and answer travel.

The launching program (``phalanx.launcher.functions.function_job``) writes an *order* into a file without a name:
function, arguments, and what a worker needs to import the same modules. Each worker calls the function and leaves its
*answer*, a value or an exception, in another such file. A worker loads this folder under a private package name, as the
boot file does with ``phalanx.errors``: its interpreter may have another phalanx, or none.
"""

from __future__ import annotations

__all__ = ["worker_file"]


def worker_file() -> str:
    """The path of the program that a worker runs: ``<boot file> <worker_file()> <order> <local rank>``."""
    return __file__.rpartition("/")[0] + "/worker.py"
