"""What a state and a reader may be, and what is copied of a state that is saved in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.states import is_written_at_once, snapshot_of


class Model:
    """Has what a model of torch has; it can be called, too."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def __call__(self, folder: Any) -> None:
        raise AssertionError("called with a folder, or a step")


def test_a_model_by_itself_is_refused_with_the_name_of_what_takes_it(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(TypeError, match=r"Model has a state_dict: wrap it, TorchState\(model=…\) saves it"):
        checkpointer.save(1, Model())
    checkpointer.save(1, {"weights": b"1234"})
    with pytest.raises(TypeError, match=r"wrap it, TorchState\(model=…\) loads it"):
        checkpointer.load_latest(Model())


def test_the_models_of_torch_are_such_ones(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(TypeError, match=r"Linear has a state_dict: wrap it, TorchState"):
        checkpointer.save(1, model)
    for state in ({"model": model.state_dict()}, {"a": [model.weight.detach()]}, {"model": model}):
        with pytest.raises(TypeError, match="TorchState"):
            checkpointer.save(1, state)
    assert checkpointer.steps() == []


def test_a_snapshot_does_not_follow_what_training_does() -> None:
    numpy = pytest.importorskip("numpy")
    array, nested, data = numpy.arange(4.0), {"lr": [0.1]}, bytearray(b"abc")
    taken = snapshot_of(
        {"array": array, "nested": nested, "data": data, "view": memoryview(data), "text": "x"}
    )
    array += 1
    nested["lr"].append(0.2)
    data[0] = 0
    assert taken["array"].tolist() == [0, 1, 2, 3]
    assert (taken["nested"], taken["data"], taken["view"], taken["text"]) == (
        {"lr": [0.1]},
        b"abc",
        b"abc",
        "x",
    )


def test_an_object_gives_its_own_snapshot_and_one_that_cannot_is_refused() -> None:
    class Live:
        def write(self, folder: Path) -> None:
            raise AssertionError

        def snapshot(self) -> str:
            return "copy"

    class Bare:
        def write(self, folder: Path) -> None:
            raise AssertionError

    assert snapshot_of(Live()) == "copy"
    assert is_written_at_once(print)
    assert not any(map(is_written_at_once, (Live(), Bare(), {}, 5)))
    with pytest.raises(TypeError, match=r"Bare has write\(\) and no snapshot\(\)"):
        snapshot_of(Bare())


def test_a_callable_that_needs_all_ranks_is_refused_in_the_background_and_not_called() -> None:
    class Meeting:
        is_collective = True

        def __call__(self, folder: Path) -> None:
            raise AssertionError("called while the program waits")

    assert not is_written_at_once(Meeting())
    with pytest.raises(TypeError, match="write a Meeting talk to each other"):
        snapshot_of(Meeting())
