"""A mapping of names to bytes or JSON values, one file for each entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.checkpoint.saved import SavedStep

__all__ = ["read", "write"]


def write(folder: Path, mapping: Mapping[str, Any]) -> None:
    """Write one file for each entry: ``name.bin`` for bytes, ``name.json`` for a JSON value."""
    for name, value in mapping.items():
        if isinstance(value, bytes):
            (folder / f"{name}.bin").write_bytes(value)
        else:
            (folder / f"{name}.json").write_text(json.dumps(value, allow_nan=False))


def read(saved: SavedStep) -> dict[str, Any]:
    """The mapping that was written."""
    found: dict[str, Any] = {}
    for path in saved.folder.iterdir():
        if path.suffix == ".bin":
            found[path.stem] = path.read_bytes()
        elif path.suffix == ".json" and path.name != "manifest.json":
            found[path.stem] = json.loads(path.read_text())
    return found
