"""A rendezvous in a shared folder, as somebody would write it for torchrun: it imports nothing of Phalanx or torch.

What torchrun's interface asks of a handler is known by its names only. Rounds form when enough nodes wait and every
member of the last round is among them.
"""

import contextlib
import fcntl
import json
import os
import time
import uuid
from types import SimpleNamespace

LOOK_AGAIN_S = 0.05


class RendezvousClosedError(Exception):
    pass


class FolderStore:
    """The part of torch's store that agents use; a key is a file."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self._folder = folder

    def _path(self, key):
        return os.path.join(self._folder, key.replace("/", "%2F"))

    def set(self, key, value):
        path = self._path(key)
        half = f"{path}.{uuid.uuid4().hex}"
        with open(half, "wb") as file:
            file.write(value.encode() if isinstance(value, str) else value)
        os.rename(half, path)

    def get(self, key):
        while not self.check([key]):
            time.sleep(LOOK_AGAIN_S)
        with open(self._path(key), "rb") as file:
            return file.read()

    def check(self, keys):
        return all(os.path.exists(self._path(key)) for key in keys)


class FolderHandler:
    use_agent_store = False

    def __init__(self, params):
        self._params = params
        self._folder = params.endpoint
        self._name = uuid.uuid4().hex
        self._round = 0
        os.makedirs(self._folder, exist_ok=True)

    @contextlib.contextmanager
    def _state(self):
        path = os.path.join(self._folder, "state")
        with open(path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            state = json.loads(file.read() or '{"round": 0, "members": [], "waiting": [], "closed": false}')
            yield state
            file.seek(0)
            file.truncate()
            json.dump(state, file)

    def get_backend(self):
        return "folder"

    def get_run_id(self):
        return self._params.run_id

    def next_rendezvous(self):
        with self._state() as state:
            state["waiting"].append(self._name)
        members: list[str] = []
        while not members:
            with self._state() as state:
                waiting = state["waiting"]
                if state["closed"] and self._name in waiting:
                    raise RendezvousClosedError("somebody has closed it")
                if (
                    self._name in waiting
                    and len(waiting) >= self._params.min_nodes
                    and set(state["members"]) <= set(waiting)
                ):
                    state.update(round=state["round"] + 1, members=sorted(waiting), waiting=[])
                if state["round"] > self._round and self._name in state["members"]:
                    self._round, members = state["round"], state["members"]
            time.sleep(LOOK_AGAIN_S)
        return SimpleNamespace(
            store=FolderStore(os.path.join(self._folder, f"round-{self._round}")),
            rank=members.index(self._name),
            world_size=len(members),
            bootstrap_store_info=None,
        )

    def is_closed(self):
        with self._state() as state:
            return state["closed"]

    def set_closed(self):
        with self._state() as state:
            state["closed"] = True

    def num_nodes_waiting(self):
        with self._state() as state:
            return len(state["waiting"])

    def shutdown(self):
        return True


def generator():
    return FolderHandler
