"""A local etcd server on a free port: for tests, and for jobs of one node that need no store of their own to stay.

Names and behaviour are torchelastic's (``rendezvous.etcd_server``), with three repairs: a folder that the caller gave
is left to the caller, a second start does not leave the first server behind, and what answers is asked for its health
by HTTP, which every etcd of version 3 has.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import logging
import os
import shutil
import socket
import subprocess as processes  # one of the public parameters has the module's name
import tempfile
import time
from typing import TYPE_CHECKING, TextIO

from phalanx.store.etcd.binary import find_etcd

if TYPE_CHECKING:
    from phalanx.rendezvous.etcd_client import EtcdClient

__all__ = ["EtcdServer", "find_free_port", "stop_etcd"]

logger = logging.getLogger(__name__)

_HOST = "localhost"
_ASK_AGAIN_S = 0.1
_ANSWER_S = 2.0
_STOP_GRACE_S = 5.0


def find_free_port() -> socket.socket:
    """A socket bound to a free port of localhost, which keeps it from others until the caller closes it."""
    for family, kind, protocol, _, address in socket.getaddrinfo(_HOST, 0, type=socket.SOCK_STREAM):
        reserved = socket.socket(family, kind, protocol)
        try:
            reserved.bind((address[0], 0))
            reserved.listen(0)
        except OSError:
            reserved.close()
            continue
        return reserved
    raise RuntimeError("no port of localhost is free")


def stop_etcd(subprocess: processes.Popen[bytes] | None, data_dir: str | None = None) -> None:
    """End a server, if it runs, and remove ``data_dir``, if one is given."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        try:
            subprocess.wait(_STOP_GRACE_S)
        except processes.TimeoutExpired:
            subprocess.kill()
            subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


class EtcdServer:
    """Starts and stops an etcd server on a free port of localhost.

    ``data_dir`` keeps its data; without one there is a temporary folder, which ``stop()`` removes. The program is found
    as ``phalanx.store.etcd.binary.find_etcd`` says. What still runs when the interpreter exits is stopped then.
    """

    def __init__(self, data_dir: str | None = None) -> None:
        self._port = -1
        self._given_dir = data_dir
        self._made_dir: str | None = None
        self._process: processes.Popen[bytes] | None = None

    def get_port(self) -> int:
        """The port, or -1 before it was started."""
        return self._port

    def get_host(self) -> str:
        """Where it runs: ``localhost``."""
        return _HOST

    def get_endpoint(self) -> str:
        """``host:port``."""
        return f"{_HOST}:{self._port}"

    def start(self, timeout: int = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start it, and return when it is ready to serve.

        Each of ``num_retries`` tries may take ``timeout`` seconds; ``stderr`` is as for ``subprocess.Popen``. Raises
        ``TimeoutError`` when the last try was not ready in time, ``RuntimeError`` when the server ended by itself, and
        ``phalanx.store.port.Refused`` without a program.
        """
        binary = find_etcd()
        self.stop()
        folder = self._given_dir
        if folder is None:
            folder = self._made_dir = tempfile.mkdtemp(prefix="phalanx-etcd-")
        atexit.register(self.stop)
        for number in range(max(1, num_retries)):
            try:
                self._start_once(binary, os.path.join(folder, str(number)), timeout, stderr)
                return
            except (OSError, RuntimeError) as error:  # TimeoutError is an OSError
                stop_etcd(self._process)
                self._process = None
                if number + 1 >= num_retries:
                    self.stop()
                    raise
                logger.warning("The etcd server did not start (%s); trying again.", error)

    def get_client(self) -> EtcdClient:
        """A new client of it, to be closed by the caller. Needs the extra ``etcd``."""
        from phalanx.rendezvous.etcd_client import EtcdClient

        return EtcdClient([self.get_endpoint()])

    def stop(self) -> None:
        """Stop it, and remove the temporary folder. Idempotent."""
        atexit.unregister(self.stop)
        stop_etcd(self._process, self._made_dir)
        self._process = self._made_dir = None

    def _start_once(self, binary: str, folder: str, timeout_s: float, stderr: int | TextIO | None) -> None:
        reserved, peers_reserved = find_free_port(), find_free_port()
        self._port, peer_port = reserved.getsockname()[1], peers_reserved.getsockname()[1]
        url, peer_url = f"http://{self.get_endpoint()}", f"http://{_HOST}:{peer_port}"
        command = [
            binary,
            *("--data-dir", folder),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer_url),
        ]
        reserved.close()
        peers_reserved.close()
        self._process = processes.Popen(
            command, stdin=processes.DEVNULL, stdout=processes.DEVNULL, stderr=stderr, close_fds=True
        )
        ends_at = time.monotonic() + timeout_s
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"the etcd server ended with exit code {self._process.returncode}")
            if time.monotonic() >= ends_at:
                raise TimeoutError(f"the etcd server was not ready within {timeout_s} s")
            time.sleep(_ASK_AGAIN_S)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return bool(json.load(connection.getresponse())["health"] == "true")
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
                return False
