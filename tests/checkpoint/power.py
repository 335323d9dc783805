"""A model of what a disk may hold after the power went: everything that was put on it, and any part of the rest.

``Recording`` files do their work for real and write it down. ``Disk`` plays it again: of a file that was not synced the
content may be there, missing, cut, or zeros; of the names in a folder that was not synced each change may be there or
not, in any combination that makes sense. That is weaker than what ext4, xfs or btrfs keep.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.checkpoint.scenarios import OPERATIONS

from phalanx.checkpoint.files import Files

CHOICES_MAX = 32  # of what is lost at one moment; all of them if they are fewer


class Recording:
    def __init__(self, real: Files, root: Path) -> None:
        self._real = real
        self._root = root
        self.operations: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._real, name)
        if name not in OPERATIONS:
            return operation

        def recorded(*args: Any) -> None:
            operation(*args)  # what fails has not happened
            self.operations.append((name, tuple(self._relative(arg) for arg in args)))

        return recorded

    def _relative(self, arg: Any) -> Any:
        if not isinstance(arg, Path):
            return arg
        return arg.relative_to(self._root).as_posix() if arg.is_relative_to(self._root) else None


class File:
    def __init__(self, content: bytes, synced: bool) -> None:
        self.content = content
        self.synced = synced


class Link:
    def __init__(self, target: str) -> None:
        self.target = target

    def __repr__(self) -> str:
        return f"Link({self.target!r})"


class Folder:
    """``names`` is what processes see; ``durable`` what is on the disk; ``pending`` what happened to names since."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[tuple[Any, ...]] = []

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending = []


Node = File | Link | Folder


def changed(names: dict[str, Node], change: tuple[Any, ...]) -> None:
    """Apply one change of names, if it makes sense: its source is there, and its target can be replaced."""
    kind, *args = change
    if kind == "add":
        names.setdefault(args[0], args[1])
    elif kind == "drop":
        if names.get(args[0]) is args[1]:
            del names[args[0]]
    elif kind == "rename":
        old, new, node = args
        if names.get(old) is node and (new not in names or isinstance(names[new], Link)):
            names[new] = names.pop(old)
    elif kind == "exchange":
        one, other = args
        if one in names and other in names:
            names[one], names[other] = names[other], names[one]


class Disk:
    """Starts with what is in a real folder, all of it on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = self._read(root)

    def _read(self, path: Path) -> Folder:
        folder = Folder()
        for entry in sorted(path.iterdir()):
            if entry.is_symlink():
                folder.names[entry.name] = Link(os.readlink(entry))
            elif entry.is_dir():
                folder.names[entry.name] = self._read(entry)
            else:
                folder.names[entry.name] = File(entry.read_bytes(), synced=True)
        folder.sync()
        return folder

    def _folder(self, path: str) -> Folder:
        node: Node = self.root
        for piece in [piece for piece in path.split("/") if piece not in ("", ".")]:
            assert isinstance(node, Folder)
            node = node.names[piece]
        assert isinstance(node, Folder)
        return node

    def _split(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above), name

    def play(self, name: str, args: tuple[Any, ...]) -> None:
        getattr(self, f"_{name}")(*args)

    def _change(self, folder: Folder, change: tuple[Any, ...]) -> None:
        changed(folder.names, change)
        folder.pending.append(change)

    def _make_folder(self, path: str) -> None:
        folder, name = self._split(path)
        self._change(folder, ("add", name, Folder()))

    def _write(self, path: str, data: bytes) -> None:
        folder, name = self._split(path)
        self._change(folder, ("add", name, File(data, synced=False)))

    def _sync_file(self, path: str) -> None:
        folder, name = self._split(path)
        node = folder.names[name]
        assert isinstance(node, File)
        node.synced = True  # the content; not the name, which is the folder's

    def _sync_folder(self, path: str | None) -> None:
        if path is not None:  # outside of what is looked at
            self._folder(path).sync()

    def _rename(self, old: str, new: str) -> None:
        folder, before = self._split(old)
        same, after = self._split(new)
        assert folder is same, "across folders nothing is promised"
        self._change(folder, ("rename", before, after, folder.names[before]))

    def _exchange(self, one: str, other: str) -> None:
        folder, first = self._split(one)
        self._change(folder, ("exchange", first, other.rpartition("/")[2]))

    def _symlink(self, target: str, path: str) -> None:
        folder, name = self._split(path)
        self._change(folder, ("add", name, Link(target)))

    def _unlink(self, path: str) -> None:
        folder, name = self._split(path)
        self._change(folder, ("drop", name, folder.names[name]))

    _remove_folder = _unlink

    def after_power_loss(self, seed: str) -> Iterator[dict[str, Any]]:
        """Trees that may be there then: of names to trees, contents, or links. All possible ones, or many of them."""
        changes = 0
        files = 0
        seen: set[int] = set()

        def count(folder: Folder) -> None:
            nonlocal changes, files
            if id(folder) in seen:
                return
            seen.add(id(folder))
            changes += len(folder.pending)
            for node in [*folder.durable.values(), *folder.names.values()]:
                if isinstance(node, Folder):
                    count(node)
                elif isinstance(node, File) and not node.synced and id(node) not in seen:
                    seen.add(id(node))
                    files += 1

        count(self.root)
        bits, fates = changes, files
        options = 2**bits * 4**fates
        if options <= CHOICES_MAX:
            for kept in itertools.product((True, False), repeat=bits):
                for fate in itertools.product(range(4), repeat=fates):
                    yield self._tree(self.root, iter(kept), iter(fate), {})
            return
        chance = random.Random(seed)
        for likely in itertools.islice(itertools.cycle((0.0, 0.1, 0.5, 0.9, 1.0)), CHOICES_MAX):
            keeping = (chance.random() < likely for _ in itertools.count())
            fating = (chance.randrange(4) if chance.random() > likely else 0 for _ in itertools.count())
            yield self._tree(self.root, keeping, fating, {})

    def _tree(
        self, folder: Folder, kept: Iterator[bool], fates: Iterator[int], contents: dict[int, bytes]
    ) -> dict[str, Any]:
        names = dict(folder.durable)
        for change in folder.pending:
            if next(kept):
                changed(names, change)
        tree: dict[str, Any] = {}
        for name, node in sorted(names.items()):
            if isinstance(node, Folder):
                tree[name] = self._tree(node, kept, fates, contents)
            elif isinstance(node, Link):
                tree[name] = node
            elif node.synced:
                tree[name] = node.content
            else:
                half = len(node.content) // 2
                versions = (node.content, b"", node.content[:half], bytes(len(node.content)))
                tree[name] = versions[next(fates)]
        return tree


def build(tree: dict[str, Any], path: Path) -> None:
    path.mkdir()
    for name, node in tree.items():
        if isinstance(node, dict):
            build(node, path / name)
        elif isinstance(node, Link):
            (path / name).symlink_to(node.target)
        else:
            (path / name).write_bytes(node)
