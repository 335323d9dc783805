"""`python -m bench.checkpoint [--quick] [--folder F]`: what a checkpoint costs, beside what people write themselves.

Each sample saves the same state in all ways, one after the other, in an order that turns from sample to sample: as a
step of a `Checkpointer`, as `torch.save` with fsync and an md5 beside it, and as a plain copy of such a file with
fsync. Then each is checked, and for saves in the background it is measured how long the training thread stands still.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.__main__ import machine, number
from phalanx.checkpoint import Checkpointer

MIB = 1 << 20
TENSORS = 16


class State:
    """Tensors, as a model and its optimizer have them."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def write(self, folder: Path) -> None:
        """One file, as most people do it."""
        import torch

        torch.save(self.tensors, folder / "state.pt")

    def snapshot(self) -> State:
        """A copy that training does not change."""
        return State({name: tensor.clone() for name, tensor in self.tensors.items()})


def timed(do: Callable[[], object]) -> float:
    began_at = time.monotonic()
    do()
    return time.monotonic() - began_at


def put_on_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def by_hand(state: State, folder: Path) -> None:
    """`torch.save`, fsync, and an md5 of what was written."""
    state.write(folder)
    put_on_disk(folder / "state.pt")
    (folder / "state.pt.md5").write_text(md5(folder / "state.pt"))
    put_on_disk(folder / "state.pt.md5")


def plain_copy(source: Path, folder: Path) -> None:
    shutil.copyfile(source, folder / "copy")
    put_on_disk(folder / "copy")


def read(path: Path) -> None:
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def sample(state: State, source: Path, root: Path, turn: int) -> dict[str, float]:
    """The seconds of everything, by `<what> <way>`."""
    folder = Path(tempfile.mkdtemp(dir=root))
    checkpointer = Checkpointer(folder / "steps")
    ways: list[tuple[str, Callable[[], object]]] = [
        ("save phalanx", lambda: checkpointer.save(1, state)),
        ("save by hand", lambda: by_hand(state, folder)),
        ("save copy", lambda: plain_copy(source, folder)),
    ]
    checks: list[tuple[str, Callable[[], object]]] = [
        ("verify phalanx", lambda: checkpointer.verify(1)),
        ("verify by hand", lambda: md5(folder / "state.pt") == (folder / "state.pt.md5").read_text()),
        ("verify copy", lambda: read(folder / "copy")),
    ]
    turned = [*ways[turn % 3 :], *ways[: turn % 3], *checks[turn % 3 :], *checks[: turn % 3]]
    found = {name: timed(do) for name, do in turned}
    found["stall foreground"] = found["save phalanx"]
    with Checkpointer(folder / "later", background=True) as later:
        found["stall copy of the state"] = timed(state.snapshot)
        found["stall background"] = timed(lambda: later.save(1, state))
        found["until it is visible"] = found["stall background"] + timed(later.wait)
    shutil.rmtree(folder)
    os.sync()  # what one sample has left in the page cache is no load for the next one
    return found


def row(title: str, cells: list[str]) -> None:
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint")
    parser.add_argument("--quick", action="store_true", help="a small state, few samples: a look")
    parser.add_argument("--folder", help="where to save (default: the folder for temporary files)")
    options = parser.parse_args()
    import torch

    size, samples = (64 * MIB, 3) if options.quick else (256 * MIB, 5)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"layer{index}": torch.randn(size // TENSORS // 4, generator=generator) for index in range(TENSORS)
    }
    state = State(tensors)
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=options.folder) as name:
        root = Path(name)
        state.write(root)
        found = [sample(state, root / "state.pt", root, turn) for turn in range(-1, samples)][1:]

    def seconds(key: str) -> list[float]:
        return [each[key] for each in found]

    def rate(key: str) -> str:
        rates = [size / 1e6 / each for each in seconds(key)]
        return f"{number(statistics.median(rates))} MB/s ({number(min(rates))} to {number(max(rates))})"

    def lasted(key: str) -> str:
        all_s = seconds(key)
        return f"{number(statistics.median(all_s))} s ({number(min(all_s))} to {number(max(all_s))})"

    print(f"{machine()}; {size // MIB} MiB in {TENSORS} tensors; median (least to greatest), n={samples}\n")
    print("| what | Phalanx | `torch.save`, fsync, md5 | plain copy, fsync |\n|---|---|---|---|")
    row("save", [rate(f"save {way}") for way in ("phalanx", "by hand", "copy")])
    row("verify (page cache)", [rate(f"verify {way}") for way in ("phalanx", "by hand", "copy")])
    print("\n| the training thread stands still | |\n|---|---|")
    row("save in the foreground", [lasted("stall foreground")])
    row("save in the background", [lasted("stall background")])
    row("a copy of the state alone, beside it", [lasted("stall copy of the state")])
    row("until the step is visible, in the background", [lasted("until it is visible")])


if __name__ == "__main__":
    main()
