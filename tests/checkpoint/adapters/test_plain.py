from __future__ import annotations

import enum
import json
import math
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.checkpoint.adapters import plain
from phalanx.checkpoint.exceptions import CheckpointError
from phalanx.checkpoint.saved import SavedStep


def there_and_back(folder: Path, mapping: dict[str, Any]) -> dict[str, Any]:
    plain.write(folder, mapping)
    found: dict[str, Any] = plain.read(SavedStep(1, {}, 1, folder, (folder,)))
    assert list(found) == list(mapping)
    return found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=JSON | st.binary())
def test_what_is_not_refused_comes_back_as_it_was(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    found = there_and_back(folder, {"value": value})["value"]
    assert repr(found) == repr(value)  # which tells True from 1, 1.0 from 1, -0.0 from 0.0, and knows NaN


def test_numbers_that_json_has_no_word_for_are_kept(tmp_path: Path) -> None:
    found = there_and_back(tmp_path, {"best": math.inf, "loss": [math.nan, -math.inf]})
    assert found["best"] == math.inf
    assert math.isnan(found["loss"][0])


ARRAYS = {
    "a row": np.arange(5, dtype="f4"),
    "no dimension": np.array(3.5),
    "empty": np.zeros((0, 3), dtype="i2"),
    "Fortran's order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(4, dtype=">i4"),
    "every second one": np.arange(10)[::2],
    "backwards": np.arange(6).reshape(2, 3)[:, ::-1],
    "bools": np.array([True, False]),
    "halves": np.array([1.5, math.nan], dtype="f2"),
    "complex": np.array([1 + 2j], dtype="c8"),
    "text": np.array(["a", "ü"]),
    "bytes": np.array([b"a", b"bc"]),
    "times": np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    "structured": np.array(
        [(1, 2.5, [1, 2])], dtype=[("number", "<i4"), ("value", ">f8"), ("pair", "i1", (2,))]
    ),
    "aligned": np.zeros(2, dtype=np.dtype([("flag", "?"), ("value", "f8")], align=True)),
    "bfloat16": np.array([1.5, -2.0, math.nan], dtype=ml_dtypes.bfloat16),
    "one bfloat16": np.array(1.5, dtype=ml_dtypes.bfloat16),
    "bfloat16 in Fortran's order": np.asfortranarray(np.ones((2, 3), dtype=ml_dtypes.bfloat16)),
    "eight bits": np.array([1.5, -2.0], dtype=ml_dtypes.float8_e4m3fn),
    "four bits": np.array([1, -2], dtype=ml_dtypes.int4),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_with_its_type_its_shape_and_every_bit(tmp_path: Path, name: str) -> None:
    value = ARRAYS[name]
    found = there_and_back(tmp_path, {name: value})[name]
    assert type(found) is np.ndarray
    assert (found.dtype, found.dtype.str, found.shape) == (value.dtype, value.dtype.str, value.shape)
    assert found.tobytes() == value.tobytes()
    if value.flags.forc:
        assert found.flags.fnc == value.flags.fnc
    assert {path.name for path in tmp_path.iterdir()} == {"entries.json", f"{name}.npy"}


class Colour(enum.IntEnum):
    RED = 1


class Pair(NamedTuple):
    one: int


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ((1, 2), "x is a tuple, which JSON would give back as a list; save a list"),
        ({"a": [(1,)]}, r"x\['a'\]\[0\] is a tuple"),
        ({1: 2}, "x has the key 1; keys in JSON are strings"),
        (Colour.RED, r"x is a .*Colour, which JSON cannot hold"),
        (Pair(1), "Pair"),
        (OrderedDict(a=1), "x is a collections.OrderedDict"),
        ({1}, "x is a set"),
        (1j, "x is a complex"),
        (Path("a"), "Path"),
        (np.float64(1), r"x is a numpy.float64; save its item\(\)"),
        ([np.float32(1)], r"x\[0\] is a numpy.float32"),
        ("\ud800", "x is no text that could be encoded"),
        (1 << 1024, "more than 1024 bits"),
        (ITSELF, "nested more than 100 times, or contains itself"),
        (np.array([{}]), r"x is an array of objects \(object\), which only pickle could save"),
        (np.array([(1, {})], dtype=[("a", "i4"), ("b", "O")]), "array of objects"),
        (np.ma.array([1], mask=[True]), "x is a MaskedArray, which would come back as a plain array"),
        (np.zeros(1, dtype=[("ml_dtypes.bfloat16", "<u2")]), "has another meaning here"),
        ({"w": np.zeros(3)}, r"an array is saved only as an entry of its own of a mapping"),
        ({"w": np.float32(3)}, r"save its item\(\)"),
        (np.array(["a"], dtype=np.dtypes.StringDType()), "which only pickle could save"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_would_come_back_as_something_else_is_refused_before_anything_is_written(
    tmp_path: Path, value: Any, sentence: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        plain.write(tmp_path, {"first": b"", "x": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_is_refused_with_the_way_to_save_it(tmp_path: Path) -> None:
    import torch

    with pytest.raises(TypeError, match=r"loss is a torch.Tensor; save a training with TorchState"):
        plain.write(tmp_path, {"loss": torch.ones(1)})


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "../a",
        "a\\b",
        "a\0",
        "a\n",
        "é" * 101,
        "manifest",
        "Entries",
        "\ud800",
    ],
    ids=ascii,
)
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no name for an entry"):
        plain.write(tmp_path, {name: 1})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="it is no text"):
        plain.write(tmp_path, {3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["a", "a.json", "latest", "layer.0.weight", "mit Leerzeichen", "é" * 100])
def test_other_names_are_kept(tmp_path: Path, name: str) -> None:
    assert there_and_back(tmp_path, {"a": 1, name: b"2"}) == {"a": 1, name: b"2"} | (
        {} if name != "a" else {"a": b"2"}
    )


def test_what_looks_like_bytes_comes_back_as_bytes(tmp_path: Path) -> None:
    assert there_and_back(tmp_path, {"a": bytearray(b"1"), "b": memoryview(b"2")}) == {"a": b"1", "b": b"2"}


def test_files_of_others_are_left_alone_and_are_no_mapping(tmp_path: Path) -> None:
    assert plain.read_part(tmp_path) == {}
    (tmp_path / "model.bin").write_bytes(b"large")
    with pytest.raises(
        CheckpointError, match=r"holds no mapping but model.bin: give load a reader, the object"
    ):
        plain.read_part(tmp_path)
    plain.write(tmp_path, {"a": 1})
    assert plain.read_part(tmp_path) == {"a": 1}


def test_a_sharded_step_is_a_list_of_mappings(tmp_path: Path) -> None:
    parts = tuple(tmp_path / f"rank-{rank:05d}" for rank in range(2))
    for rank, part in enumerate(parts):
        part.mkdir()
        plain.write(part, {"rank": rank})
    assert plain.read(SavedStep(1, {}, 2, tmp_path, parts)) == [{"rank": 0}, {"rank": 1}]
    assert plain.read(SavedStep(1, {}, 1, tmp_path, parts[:1])) == [{"rank": 0}]


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (
            {"version": 1, "entries": {"../secret": "json"}},
            "'../secret' is no name for an entry: it begins with a dot",
        ),
        ({"version": 1, "entries": {"a/../../secret": "json"}}, "it contains '/'"),
        ({"version": 1, "entries": {"a": "pickle"}}, "a is 'pickle', which is not known here"),
        ({"version": 1, "entries": {"a": ["json"]}}, "which is not known here"),
        ({"version": 1, "entries": ["a"]}, "has no entries"),
        ({"version": 1}, "has no entries"),
    ],
    ids=str,
)
def test_entries_of_somebody_else_lead_nowhere_else(tmp_path: Path, index: Any, sentence: str) -> None:
    (tmp_path / "secret.json").write_text('"told"')
    (tmp_path / "step").mkdir()
    (tmp_path / "step/entries.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=sentence):
        plain.read_part(tmp_path / "step")
    (tmp_path / "step/entries.json").write_text("no JSON")
    with pytest.raises(CheckpointError, match=r"entries.json cannot be read"):
        plain.read_part(tmp_path / "step")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_torchs_first_tries_are_told_of_torchs_adapters() -> None:
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        pass

    for value in (torch.nn.Linear(1, 1).state_dict(), torch.ones(1), (torch.ones(1),), [torch.ones(1)]):
        with pytest.raises(
            TypeError, match=r"a training with TorchState\(.*, other tensors with TorchSave\(value\)"
        ):
            plain.check({"model": value})
    for value in (Net(), torch.optim.SGD([torch.ones(1)], lr=0.1)):
        with pytest.raises(TypeError, match=r"save it with TorchState\(model=…\)"):
            plain.check({"model": value})


def test_entries_of_a_later_release_are_refused(tmp_path: Path) -> None:
    (tmp_path / "entries.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(CheckpointError, match="was not written by this release"):
        plain.read_part(tmp_path)


def test_an_array_of_bfloat16_says_what_is_needed_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.write(tmp_path, {"weights": np.ones(2, dtype=ml_dtypes.bfloat16)})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(CheckpointError, match=r"weights.npy is an array of bfloat16.* pip install ml-dtypes"):
        plain.read_part(tmp_path)


def test_without_an_array_numpy_is_not_imported(tmp_path: Path) -> None:
    program = """
import pathlib, sys
from phalanx.checkpoint.adapters import plain
folder = pathlib.Path(sys.argv[1])
plain.write(folder, {"a": b"1", "b": [1]})
assert plain.read_part(folder) == {"a": b"1", "b": [1]}
sys.exit("numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == 0
