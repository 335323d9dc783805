"""Error handlers by name: the agent reads entry points, workers get ``module:name``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.launcher.plugins import ERROR_HANDLERS, resolve_error_handler


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with an error handler, as pip would have left it."""
    (tmp_path / "their_handler.py").write_text(
        "import json, os\n"
        "from phalanx.errors import ErrorHandler\n"
        "class Handler(ErrorHandler):\n"
        "    def record_exception(self, e):\n"
        "        super().record_exception(e)\n"
        "        with open('seen.json', 'w') as file:\n"
        "            json.dump({'type': type(e).__name__, 'rank': os.environ['RANK']}, file)\n"
    )
    info = tmp_path / "their_handler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-handler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ERROR_HANDLERS}]\ntheirs = their_handler:Handler\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_entry_point_becomes_module_and_name(installed: Path) -> None:
    assert resolve_error_handler("theirs") == "their_handler:Handler"


def test_a_module_and_name_is_taken_as_it_is() -> None:
    assert resolve_error_handler("somewhere:Handler") == "somewhere:Handler"


def test_an_unknown_name_is_refused_with_those_that_exist(installed: Path) -> None:
    with pytest.raises(ValueError, match=r"no error handler is called 'thiers'.*: theirs\)"):
        resolve_error_handler("thiers")


@pytest.mark.system
def test_the_handler_of_an_installed_distribution_sees_the_exception_of_a_worker(installed: Path) -> None:
    (installed / "train.py").write_text("raise KeyError('x')\n")
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "--error-handler=theirs", "train.py"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "KeyError: 'x' at train.py:1" in ended.stderr
    assert json.loads((installed / "seen.json").read_text()) == {"type": "KeyError", "rank": "0"}


HANDLER = '''
import os, time
from pathlib import Path
from phalanx.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class Folder:
    """A store of files, with what an agent needs of one."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.mkdir(exist_ok=True)

    def _file(self, key):
        return self.path / key.replace("/", "_")

    def set(self, key, value):
        fresh = self._file(key).with_suffix(f".{os.getpid()}")
        fresh.write_bytes(value if isinstance(value, bytes) else value.encode())
        fresh.rename(self._file(key))

    def get(self, key):
        while not self._file(key).exists():
            time.sleep(0.01)
        return self._file(key).read_bytes()

    def check(self, keys):
        return all(self._file(key).exists() for key in keys)


class Handler(RendezvousHandler):
    def __init__(self, params):
        self.params = params
        self.store = Folder(params.endpoint)

    def get_backend(self):
        return "theirs"

    @property
    def use_agent_store(self):
        return False

    def next_rendezvous(self):
        rank, size = int(self.params.get("rank")), self.params.max_nodes
        where = RendezvousStoreInfo.build(rank, self.store, "127.0.0.1")
        return RendezvousInfo(self.store, rank, size, where)

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return self.params.run_id

    def shutdown(self):
        return True


def plug_in():
    return Handler
'''


@pytest.mark.system
def test_the_rendezvous_handler_of_an_installed_distribution_brings_two_nodes_together(
    installed: Path,
) -> None:
    (installed / "their_rendezvous.py").write_text(HANDLER)
    info = installed / "their_handler-1.0.dist-info" / "entry_points.txt"
    info.write_text("[torchrun.handlers]\ntheirs = their_rendezvous:plug_in\n")
    (installed / "train.py").write_text(
        "import os\nprint(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')))\n"
    )
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=theirs",
    ]
    agents = [
        subprocess.Popen(
            [*command, "--rdzv-endpoint=meeting", f"--rdzv-conf=rank={rank}", "train.py"],
            cwd=installed,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [agent.communicate(timeout=60) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], said
    (first, size, *where), (second, *same) = (out.split() for out, _ in said)
    assert (first, size, second) == ("0", "2", "1")
    assert [size, *where] == same
