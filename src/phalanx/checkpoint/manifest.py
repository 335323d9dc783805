"""The manifest of a step: what was saved, how large each file is, and its checksum. Encodes, decodes, refuses. Pure.

Its own ``checksum`` is the sha256 of the canonical JSON (sorted keys, no blanks) of all its other entries.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from phalanx.checkpoint.naming import MANIFEST, STEP_MAX, part_name
from phalanx.records import Struct

__all__ = [
    "DIGITS",
    "MANIFEST_BYTES_MAX",
    "FileRecord",
    "Manifest",
    "NewerManifest",
    "PartRecord",
    "UnreadableManifest",
    "decode",
    "encode",
    "file_name_fault",
    "json_value",
]

FORMAT = "phalanx-checkpoint"
VERSION = 1
MANIFEST_BYTES_MAX = 256 * 1024 * 1024  # a million files; more is damage, or not ours
SIZE_MAX = 2**63 - 1  # of a file, on any file system
WORLD_MAX = 10_000_000
SAVED_AT_MAX = 2**40  # seconds; a manifest is damaged, or none of ours, rather than so late
META_DEPTH_MAX = 100
META_INT_BITS_MAX = 14_000  # Python reads and prints whole numbers of up to 4300 digits
NAME_BYTES_MAX = 4000  # PATH_MAX is 4096, and the folder has a name, too
DIGITS = {"xxh3_128": 32, "sha256": 64, "md5": 32}  # hexadecimal digits of a checksum
_LAYOUTS = ("whole", "per-node", "sharded")


class UnreadableManifest(ValueError):
    """These bytes are no manifest, or a damaged one; the message says how, for a sentence that begins with the file."""


class NewerManifest(ValueError):
    """A newer phalanx wrote this manifest."""


class FileRecord(Struct):
    """One file of a step: its size in bytes, and its checksum in hexadecimal digits."""

    size: int
    checksum: str
    algorithm: str


class PartRecord:
    """What one writer wrote: ``part`` is its rank, or None for the only part of an unsharded step.

    File names are relative to the part's own folder.

    >>> record = PartRecord(None, {"weights": FileRecord(4, "9f" * 32, "sha256")})
    >>> PartRecord.from_json(record.to_json()) == record
    True
    """

    def __init__(self, part: int | None, files: Mapping[str, FileRecord]) -> None:
        self.part = part
        self.files = dict(files)

    def to_json(self) -> dict[str, Any]:
        """Plain values for another process of the job."""
        return {
            "part": self.part,
            "files": {name: [file.size, file.checksum, file.algorithm] for name, file in self.files.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> PartRecord:
        """The record again. Raises ``UnreadableManifest`` for anything that ``to_json`` does not make."""
        try:
            part, files = value["part"], value["files"]
            if part is not None:
                _check_int(part, "part", 0, WORLD_MAX)
            return cls(part, {name: _file(name, FileRecord(*file)) for name, file in files.items()})
        except UnreadableManifest:
            raise
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise UnreadableManifest(f"is no record of a part: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartRecord) and (self.part, self.files) == (other.part, other.files)

    __hash__ = None  # type: ignore[assignment] # it holds a dict


class Manifest(Struct, kw_only=True):
    """All that a step says about itself. File names are relative to the step's folder, parts are names in it."""

    step: int
    world_size: int
    layout: str
    algorithm: str
    files: dict[str, FileRecord]
    parts: tuple[str, ...]
    meta: dict[str, Any]
    run_id: str
    round: int
    saved_at: float


def encode(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``. Raises ``ValueError`` for what ``decode`` would refuse."""
    value: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "layout": manifest.layout,
        "algorithm": manifest.algorithm,
        "files": {name: _file_json(file, manifest.algorithm) for name, file in manifest.files.items()},
        "parts": list(manifest.parts),
        "meta": manifest.meta,
        "run_id": manifest.run_id,
        "round": manifest.round,
        "saved_at": manifest.saved_at,
    }
    value["checksum"] = _checksum(value)
    data = json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
    decode(data)  # what cannot be read again must not be published
    return data


def decode(data: bytes) -> Manifest:
    """The manifest in these bytes, checked. Raises ``UnreadableManifest``, or ``NewerManifest``.

    >>> decode(b"{}")
    Traceback (most recent call last):
    phalanx.checkpoint.manifest.UnreadableManifest: is no manifest of a checkpoint
    """
    if len(data) > MANIFEST_BYTES_MAX:
        raise UnreadableManifest(f"has {len(data)} bytes, more than a manifest can have")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableManifest("is no JSON: it is damaged, or cut off") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UnreadableManifest("is no manifest of a checkpoint")
    version = value.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise UnreadableManifest("has no version")
    checksum = value.pop("checksum", None)
    try:
        computed = _checksum(value)
    except (ValueError, RecursionError):
        raise UnreadableManifest("holds what JSON cannot") from None
    if checksum != computed:
        raise UnreadableManifest("does not match its own checksum: it was changed or damaged")
    if version > VERSION:
        raise NewerManifest(f"has version {version}, and this phalanx reads {VERSION}")
    try:
        return _manifest(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableManifest(f"lacks or garbles an entry: {error}") from None


def file_name_fault(name: object) -> str | None:
    """Why a file of a checkpoint cannot have this name; None: it can.

    >>> file_name_fault("layers/0.bin"), file_name_fault("../x"), file_name_fault("/etc/passwd")
    (None, 'leads out of the folder', 'leads out of the folder')
    """
    if not isinstance(name, str) or not name or "\0" in name:
        return "is no name of a file"
    if name.startswith("/") or any(piece in ("", ".", "..") for piece in name.split("/")):
        return "leads out of the folder"
    try:
        long = len(name.encode()) > NAME_BYTES_MAX
    except UnicodeEncodeError:
        return "is not UTF-8"
    if long:
        return "is too long"
    return "has the manifest's name" if name == MANIFEST else None


def json_value(value: object, where: str, depth: int = 0) -> Any:
    """``value`` as JSON gives it back (a tuple is a list). Raises ``TypeError`` or ``ValueError`` that say where.

    ``depth``: how deep it is in another value.

    >>> json_value({"lr": (0.1, 2)}, "meta")
    {'lr': [0.1, 2]}
    >>> json_value({"loss": float("nan")}, "meta")
    Traceback (most recent call last):
    ValueError: meta['loss'] is nan, for which JSON has no word; save None, or a string
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > META_INT_BITS_MAX:
            raise ValueError(f"{where} has more digits than a number in JSON can have; save a string")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, for which JSON has no word; save None, or a string")
        return float(value)
    if depth > META_DEPTH_MAX and isinstance(value, list | tuple | Mapping):
        raise ValueError(f"{where.partition('[')[0]} is nested too deeply, or holds itself")
    if isinstance(value, list | tuple):
        return [json_value(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys in JSON are strings")
        return {key: json_value(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise TypeError(f"{where} is of type {type(value).__name__}, which JSON cannot hold")


def joined(records: Iterable[PartRecord]) -> dict[str, FileRecord]:
    """The files of all parts, with names relative to the step's folder."""
    return {
        name if record.part is None else f"{part_name(record.part)}/{name}": file
        for record in records
        for name, file in record.files.items()
    }


def _manifest(value: dict[str, Any]) -> Manifest:
    algorithm = value["algorithm"]
    if algorithm not in DIGITS:
        raise UnreadableManifest(f"has checksums of an unknown kind, {algorithm!r}")
    world_size = _check_int(value["world_size"], "world_size", 1, WORLD_MAX)
    parts = value["parts"]
    if not isinstance(parts, list) or (parts and not _are_parts(parts, world_size)):
        raise UnreadableManifest(f"has other parts than its world size of {world_size} says")
    files, meta, saved_at = value["files"], value["meta"], value["saved_at"]
    if not isinstance(files, dict) or not isinstance(meta, dict) or value["layout"] not in _LAYOUTS:
        raise UnreadableManifest("garbles its files, its meta or its layout")
    is_time = isinstance(saved_at, int | float) and 0 <= saved_at <= SAVED_AT_MAX
    if not is_time or not isinstance(value["run_id"], str):
        raise UnreadableManifest("garbles when or by which job it was saved")
    found = {
        name: _file(name, FileRecord(file["size"], file["checksum"], file.get("algorithm", algorithm)))
        for name, file in files.items()
    }
    beside = next((name for name in found if parts and name.partition("/")[0] not in parts), None)
    if beside is not None:
        raise UnreadableManifest(f"has the file {beside!r} outside of its parts")
    return Manifest(
        step=_check_int(value["step"], "step", 0, STEP_MAX),
        world_size=world_size,
        layout=value["layout"],
        algorithm=algorithm,
        files=found,
        parts=tuple(parts),
        meta=meta,
        run_id=value["run_id"],
        round=_check_int(value["round"], "round", 0, STEP_MAX),
        saved_at=float(saved_at),
    )


def _are_parts(parts: list[Any], world_size: int) -> bool:
    return len(parts) == world_size and all(part == part_name(rank) for rank, part in enumerate(parts))


def _file(name: object, file: FileRecord) -> FileRecord:
    fault = file_name_fault(name)
    if fault:
        raise UnreadableManifest(f"has a file whose name {fault}: {name!r}")
    _check_int(file.size, f"size of {name}", 0, SIZE_MAX)
    digits = DIGITS.get(file.algorithm)
    if digits is None or not re.fullmatch(f"[0-9a-f]{{{digits}}}", file.checksum):
        raise UnreadableManifest(f"has no checksum for {name}")
    return file


def _file_json(file: FileRecord, usual: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"size": file.size, "checksum": file.checksum}
    if file.algorithm != usual:
        entry["algorithm"] = file.algorithm
    return entry


def _check_int(value: object, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UnreadableManifest(f"has {repr(value)[:40]} as its {name}")
    return value


def _checksum(value: dict[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
