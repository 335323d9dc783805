"""torch's reader of distributed checkpoints, without the freedom of pickle. Imports torch.

Their ``.metadata`` is a pickle: a step from somebody else could run what it likes. The file stays torch's own.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from phalanx.checkpoint.exceptions import CheckpointError

__all__ = ["Reader"]

_CLASSES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},  # where it was saved
}


class Reader(FileSystemReader):  # type: ignore[misc,unused-ignore] # torch has no types where it is not installed
    """Reads a folder of torch's, whose ``.metadata`` may only name torch's own records."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata. Raises ``CheckpointError`` if it is anything else, or names files elsewhere."""
        path = Path(self._get_metadata_path(kwargs.get("rank")))
        try:
            with path.open("rb") as file:
                metadata = _Unpickler(file).load()
        except (
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            TypeError,
            AttributeError,
            IndexError,
            KeyError,
        ) as error:
            raise CheckpointError(f"{path.name} is no metadata of torch's: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path.name} is a {type(metadata).__name__}, no metadata of torch's")
        for info in (metadata.storage_data or {}).values():
            name = getattr(info, "relative_path", None)
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f"{path.name} names {name!r}, which is no file of the step")
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
