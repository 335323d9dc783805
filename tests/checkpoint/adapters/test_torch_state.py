from __future__ import annotations

import collections
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.optim.lr_scheduler as rates
from torch.utils.data import DataLoader, TensorDataset

from phalanx.checkpoint import Checkpointer, CheckpointError, TorchState
from phalanx.checkpoint.saved import SavedStep
from phalanx.data import ElasticDistributedSampler

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _random_states() -> Iterator[None]:
    """What runs after these tests draws what it would have drawn without them."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # on a busy machine more of them wait for each other, in each of many small steps
    yield
    torch.set_num_threads(threads)
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


class Average:
    """An object of the user's own: a running mean of the weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.mean = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.count = 0

    def update(self, model: torch.nn.Module) -> None:
        self.count += 1
        for name, value in model.named_parameters():
            self.mean[name] += (value.detach() - self.mean[name]) / self.count

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count = state["mean"], state["count"]


class Training:
    """Everything that has a state: dropout, batch norm, momentum, schedules, a scaler, noise of each kind."""

    def __init__(self, seed: int, schedule: str = "cosine") -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        if schedule == "cosine":
            self.scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        elif schedule == "lambda":
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.95**step)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.average = Average(self.model)
        inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        self.sampler = ElasticDistributedSampler(40, 1, 0, seed=3)
        # A generator of its own: making an iterator draws from it, and a resumed job makes one more.
        self.loader = DataLoader(
            TensorDataset(inputs, inputs.sum(1, keepdim=True)),
            batch_size=8,
            sampler=self.sampler,
            generator=torch.Generator(),
        )
        self.state = TorchState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            sampler=self.sampler,
            average=self.average,
            best=float("inf"),
            history=[],
        )

    def steps(self, epochs: int = 3) -> Iterator[float]:
        for epoch in range(self.sampler.epoch, epochs):
            self.sampler.set_epoch(epoch)
            for inputs, wanted in self.loader:
                noise = random.random() * 0.01 + float(np.random.rand()) * 0.01
                loss = torch.nn.functional.mse_loss(self.model(inputs + noise), wanted)
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                self.average.update(self.model)
                self.sampler.advance(len(inputs))
                self.state.values["best"] = min(self.state.values["best"], loss.item())
                self.state.values["history"].append(epoch)
                yield loss.item()


def same(one: Any, other: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def everything(training: Training) -> dict[str, Any]:
    states = {name: thing.state_dict() for name, thing in training.state.objects.items()}
    numpy_state: Any = np.random.get_state()
    return {
        **states,
        "values": training.state.values,
        "random": [random.getstate(), torch.get_rng_state(), numpy_state[1].tolist(), *numpy_state[2:]],
    }


@pytest.mark.parametrize("schedule", ["cosine", "lambda", "one cycle"])
@pytest.mark.parametrize("background", [0, 1])
@pytest.mark.parametrize("at", [2, 5])  # in an epoch, and at its end
def test_a_resumed_training_has_the_same_losses_to_the_last_bit(
    tmp_path: Path, schedule: str, background: int, at: int
) -> None:
    training = Training(1, schedule)
    losses = []
    with Checkpointer(tmp_path, background=background) as checkpointer:
        for number, loss in enumerate(training.steps(), 1):
            losses.append(loss)
            if number == at:
                checkpointer.save(number, training.state)
    assert len(losses) == 15

    resumed = Training(2, schedule)
    loaded = Checkpointer(tmp_path).load_latest(resumed.state)
    assert loaded is not None
    assert loaded.value == resumed.state.values
    assert loaded.value["best"] == min(losses[:at])
    assert [*losses[:at], *resumed.steps()] == losses
    again = everything(resumed)

    once_more = Training(1, schedule)
    assert list(once_more.steps()) == losses
    assert same(again, everything(once_more))


def test_everything_is_bitwise_equal_after_a_round_trip(tmp_path: Path) -> None:
    training = Training(1)
    for _ in zip(range(3), training.steps(), strict=False):
        pass
    random.gauss(0, 1)  # Python, numpy and torch each keep a second number for the next call
    np.random.randn()
    torch.randn(1)
    Checkpointer(tmp_path).save(3, training.state)
    saved = everything(training)
    random.random()
    other = Training(2)
    assert not same(saved, everything(other))
    Checkpointer(tmp_path).load_latest(other.state)
    assert same(saved, everything(other))


def test_a_snapshot_is_not_changed_by_training_on(tmp_path: Path) -> None:
    expected, found, training = Training(2), Training(3), Training(1)
    steps = training.steps()
    next(steps)
    snapshot = training.state.snapshot()
    training.state.write(_made(tmp_path / "then"))
    list(steps)
    snapshot.write(_made(tmp_path / "later"))
    expected.state.read(_saved(tmp_path / "then"))
    then = everything(expected)
    found.state.read(_saved(tmp_path / "later"))
    assert same(then, everything(found))
    assert {path.name for path in (tmp_path / "then").iterdir()} == {
        path.name for path in (tmp_path / "later").iterdir()
    }


def test_weights_that_share_memory_are_saved_once(tmp_path: Path) -> None:
    one = torch.nn.Linear(100, 100, bias=False)
    other = torch.nn.Linear(100, 100, bias=False)
    other.weight = one.weight
    model = torch.nn.Sequential(one, other)
    TorchState(model=model).write(_made(tmp_path / "now"))
    TorchState(model=model).snapshot().write(_made(tmp_path / "later"))
    for name in ("now", "later"):
        assert (tmp_path / name / "model.pt").stat().st_size < 2 * 4 * 100 * 100
        state = torch.load(tmp_path / name / "model.pt", weights_only=True)
        assert state._metadata == model.state_dict()._metadata
        assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _saved(folder: Path, world_size: int | None = None, rank: int = 0) -> SavedStep:
    parts = (
        (folder,) if world_size is None else tuple(folder / f"rank-{rank:05d}" for rank in range(world_size))
    )
    return SavedStep(7, {}, world_size or 1, folder, parts, rank)


def test_a_model_in_ddp_and_one_that_is_compiled_have_the_state_of_the_model(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        models = [torch.nn.Linear(2, 2) for _ in range(4)]
        wrapped = torch.nn.parallel.DistributedDataParallel(models[0])
        TorchState(model=torch.compile(wrapped)).write(_made(tmp_path / "step"))
        assert set(torch.load(tmp_path / "step/model.pt", weights_only=True)) == {"weight", "bias"}
        for model in (
            models[1],
            torch.compile(models[2]),
            torch.nn.parallel.DistributedDataParallel(models[3]),
        ):
            TorchState(model=model).read(_saved(tmp_path / "step"))
    finally:
        dist.destroy_process_group()
    assert all(torch.equal(model.weight, models[0].weight) for model in models)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_each_rank_gets_its_own_random_numbers_and_further_ones_get_new_ones(tmp_path: Path) -> None:
    expected = []
    for rank in range(2):
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        part = _made(tmp_path / f"step/rank-{rank:05d}")
        TorchState(model=torch.nn.Linear(1, 1)).write_part(part, rank)
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        torch.nn.Linear(1, 1)
        expected.append(draws())
    assert {path.name for path in (tmp_path / "step/rank-00001").iterdir()} == {"random.pt"}

    def resumed() -> list[tuple[float, float, float]]:
        found = []
        for rank in range(4):
            TorchState(model=torch.nn.Linear(1, 1)).read(_saved(tmp_path / "step", 2, rank))
            found.append(draws())
        return found

    first = resumed()
    assert first[:2] == expected
    assert all(len(set(kind)) == 4 for kind in zip(*first, strict=True))
    assert resumed() == first


def test_a_rank_other_than_0_copies_and_writes_its_random_states_alone(tmp_path: Path) -> None:
    unsavable = TorchState(odd=Odd(Config()))
    unsavable.snapshot_part(1).write(_made(tmp_path / "step/rank-00001"))
    assert {path.name for path in (tmp_path / "step/rank-00001").iterdir()} == {"random.pt"}
    with pytest.raises(TypeError, match="cannot be loaded again"):
        unsavable.snapshot_part(0)
    TorchState(epoch=1).snapshot_part(0).write(_made(tmp_path / "step/rank-00000"))
    assert TorchState(epoch=0).read(_saved(tmp_path / "step", 2)) == {"epoch": 1}


def test_of_an_unsharded_step_only_rank_0_has_the_random_numbers_that_were_saved(tmp_path: Path) -> None:
    TorchState(epoch=1).write(_made(tmp_path / "step"))
    expected = draws()
    found = []
    for rank in range(3):
        assert TorchState(epoch=0).read(_saved(tmp_path / "step", rank=rank)) == {"epoch": 1}
        found.append(draws())
    assert found[0] == expected
    assert len(set(found)) == 3


def test_the_rank_that_wrote_its_nodes_own_copy_gets_its_own_random_numbers_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(rank: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "8")

    be(4)  # the first of the second node; Checkpointer(…, per_node=True)
    TorchState(epoch=1).write(_made(tmp_path / "step"))
    expected = draws()
    found = []
    for rank in range(4, 8):
        be(rank)
        TorchState(epoch=0).read(_saved(tmp_path / "step", rank=rank))
        found.append(draws())
    assert found[0] == expected
    assert len(set(found)) == 4
    be(1)
    TorchState(epoch=0).read(_saved(tmp_path / "step", rank=4))  # by numbers of the program's own
    assert draws() != expected


def test_another_bit_generator_of_numpys_is_kept(tmp_path: Path) -> None:
    rng: Any = np.random
    before = rng.get_bit_generator()
    try:
        rng.set_bit_generator(np.random.PCG64(5))
        TorchState().write(_made(tmp_path / "step"))
        expected = np.random.rand()
        TorchState().read(_saved(tmp_path / "step"))
        assert np.random.rand() == expected
    finally:
        rng.set_bit_generator(before)


def two(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_an_object_that_is_missing_or_too_many_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    model, optimizer = two()
    TorchState(model=model, optimizer=optimizer).write(_made(tmp_path / "step"))
    other, optimizer = two(1)
    before = other.weight.clone()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model": other}, "step 7 has a state of optimizer, too; give TorchState optimizer, or load"),
        (
            {"model": other, "optimizer": optimizer, "average": Average(other)},
            "step 7 has no state of average, only of model and optimizer; leave it out",
        ),
        (
            {"model": torch.nn.Linear(2, 2, bias=False), "optimizer": optimizer},
            "the model's state in step 7 has bias, which the model here has not",
        ),
        (
            {"model": torch.nn.Sequential(other), "optimizer": optimizer},
            "has no 0.bias and 0.weight and has bias and weight, which the model here has not",
        ),
        (
            {"model": torch.nn.Linear(3, 2), "optimizer": optimizer},
            r"the model's state in step 7 has weight of the shape \[2, 2\], and here it is \[2, 3\]",
        ),
        (
            {"model": other, "optimizer": torch.optim.SGD(torch.nn.Linear(2, 2, bias=False).parameters())},
            "the optimizer's state in step 7 does not fit: it is of a group of 2 parameters, and here it has a",
        ),
    ]
    for arguments, sentence in cases:
        with pytest.raises(CheckpointError, match=f"(?s){sentence}"):
            TorchState(**arguments).read(_saved(tmp_path / "step"))
        assert torch.equal(other.weight, before)


def test_where_a_later_weight_or_the_dataset_is_another_no_part_of_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    def made(width: int, length: int) -> tuple[torch.nn.Module, TorchState]:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, width))
        return model, TorchState(model=model, sampler=ElasticDistributedSampler(length, 1, 0))

    made(2, 10)[1].write(_made(tmp_path / "step"))
    for width, length, sentence in (
        (3, 10, "has 1.weight of the shape"),
        (2, 11, "sampler's state .* length 10"),
    ):
        model, state = made(width, length)
        before = [each.detach().clone() for each in model.parameters()]
        with pytest.raises(CheckpointError, match=sentence):
            state.read(_saved(tmp_path / "step"))
        assert all(map(torch.equal, before, model.parameters()))


def test_a_value_may_be_asked_for_at_each_save(tmp_path: Path) -> None:
    epoch = 0
    state = TorchState(epoch=lambda: epoch, best=1.0)
    epoch = 3
    state.write(_made(tmp_path / "step"))
    epoch = 4
    state.snapshot().write(_made(tmp_path / "later"))
    for name, expected in (("step", 3), ("later", 4)):
        resumed = TorchState(epoch=lambda: epoch, best=2.0)
        assert resumed.read(_saved(tmp_path / name)) == {"epoch": expected, "best": 1.0}
        assert resumed.values["epoch"] == expected
    resumed = TorchState(epoch=lambda: epoch)
    resumed.read(_saved(tmp_path / "later"))
    epoch = 5  # what was loaded is not what is saved next
    resumed.write(_made(tmp_path / "again"))
    assert TorchState(epoch=0).read(_saved(tmp_path / "again"))["epoch"] == 5
    with pytest.raises(TypeError, match="epoch is a tuple"):
        TorchState(epoch=lambda: (1,)).write(tmp_path)


def test_a_value_that_was_not_saved_stays_and_one_that_is_not_expected_is_returned(tmp_path: Path) -> None:
    TorchState(epoch=3, best=0.5).write(_made(tmp_path / "step"))
    state = TorchState(epoch=0, patience=2)
    assert state.read(_saved(tmp_path / "step")) == {"epoch": 3, "best": 0.5, "patience": 2}
    assert state.values == {"epoch": 3, "best": 0.5, "patience": 2}


class Config:
    pass


class Odd:
    """Its state holds ``value``."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"rest": [0, {"value": self.value}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["rest"][1]["value"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            Config(),
            r"odd\['rest'\]\[1\]\['value'\] is a .*Config, which cannot be loaded again without running",
        ),
        (Path("a"), "PosixPath, which cannot be loaded again"),
        (np.zeros(2), r"is a numpy.ndarray, which torch loads only with pickle; keep it as torch.from_numpy"),
        (lambda: 1, "function"),
        (range(3), "range"),
    ],
    ids=["object", "path", "array", "function", "range"],
)
def test_what_could_not_be_loaded_again_is_refused_when_it_is_saved(
    tmp_path: Path, value: Any, sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        TorchState(odd=Odd(value)).write(_made(tmp_path / "step"))
    with pytest.raises(TypeError, match=sentence):
        TorchState(odd=Odd(value)).snapshot()


@pytest.mark.parametrize(
    "value",
    [
        (1, "a", None, True, 2j, b"b"),
        {1: {2}, "a": [torch.float16, torch.device("cpu"), torch.Size([1, 2])]},
        torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).t(),
        torch.eye(2).to_sparse(),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(1)),
        2**100,
        collections.Counter([2, 5, 5]),
        bytearray(b"ab"),
    ],
    ids=[
        "tuple",
        "dict",
        "bfloat16",
        "view",
        "sparse",
        "conjugate",
        "parameter",
        "long",
        "counter",
        "bytearray",
    ],
)
def test_what_is_not_refused_comes_back(tmp_path: Path, value: Any) -> None:
    for name, state in (
        ("now", TorchState(odd=Odd(value))),
        ("later", TorchState(odd=Odd(value)).snapshot()),
    ):
        state.write(_made(tmp_path / name))
        odd = Odd(None)
        TorchState(odd=odd).read(_saved(tmp_path / name))
        if not isinstance(value, torch.Tensor):
            assert (type(odd.value), odd.value) == (type(value), value)
            continue
        assert (odd.value.dtype, odd.value.layout) == (value.dtype, value.layout)
        assert torch.equal(odd.value.to_dense().nan_to_num(), value.to_dense().nan_to_num())


def test_a_copy_does_not_follow_what_can_be_changed_in_its_place(tmp_path: Path) -> None:
    counts, data = collections.Counter("a"), bytearray(b"a")
    state = TorchState(odd=Odd([counts, data])).snapshot()
    counts["a"], data[0] = 9, 9
    state.write(_made(tmp_path / "step"))
    odd = Odd(None)
    TorchState(odd=odd).read(_saved(tmp_path / "step"))
    assert odd.value == [{"a": 1}, b"a"]


def test_a_number_of_numpys_becomes_pythons(tmp_path: Path) -> None:
    TorchState(odd=Odd(np.float64(0.1))).write(_made(tmp_path / "step"))
    odd = Odd(None)
    TorchState(odd=odd).read(_saved(tmp_path / "step"))
    assert (type(odd.value), odd.value) == (float, 0.1)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ChainedScheduler": lambda optimizer: rates.ChainedScheduler(
        [rates.LinearLR(optimizer), rates.ExponentialLR(optimizer, 0.9)]
    ),
    "ConstantLR": lambda optimizer: rates.ConstantLR(optimizer, total_iters=6),
    "CosineAnnealingLR": lambda optimizer: rates.CosineAnnealingLR(optimizer, 10),
    "CosineAnnealingWarmRestarts": lambda optimizer: rates.CosineAnnealingWarmRestarts(optimizer, 5),
    "CyclicLR": lambda optimizer: rates.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
    "ExponentialLR": lambda optimizer: rates.ExponentialLR(optimizer, 0.9),
    "LambdaLR": lambda optimizer: rates.LambdaLR(optimizer, lambda step: 0.9**step),
    "LinearLR": lambda optimizer: rates.LinearLR(optimizer, total_iters=6),
    "MultiStepLR": lambda optimizer: rates.MultiStepLR(optimizer, [2, 5, 5]),
    "MultiplicativeLR": lambda optimizer: rates.MultiplicativeLR(optimizer, lambda _: 0.9),
    "OneCycleLR": lambda optimizer: rates.OneCycleLR(optimizer, 0.1, total_steps=20),
    "PolynomialLR": lambda optimizer: rates.PolynomialLR(optimizer, total_iters=8),
    "ReduceLROnPlateau": lambda optimizer: rates.ReduceLROnPlateau(optimizer, patience=1),
    "SequentialLR": lambda optimizer: rates.SequentialLR(
        optimizer, [rates.LinearLR(optimizer), rates.MultiStepLR(optimizer, [2])], milestones=[3]
    ),
    "StepLR": lambda optimizer: rates.StepLR(optimizer, 3),
}


def test_the_schedulers_below_are_all_that_torch_has() -> None:
    base = rates.LRScheduler
    found = {
        name
        for name, kind in vars(rates).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and name[0] != "_"
    }
    assert found - SCHEDULERS.keys() == set()


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if hasattr(rates, name)])
@pytest.mark.parametrize("background", [False, True])
def test_each_of_torchs_schedulers_goes_on_with_the_same_rates(
    tmp_path: Path, name: str, background: bool
) -> None:
    def fresh() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    def go_on(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
        found = []
        for _ in range(4):
            optimizer.step()
            scheduler.step(*((1.0,) if name == "ReduceLROnPlateau" else ()))
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found

    optimizer, scheduler = fresh()
    go_on(optimizer, scheduler)
    with Checkpointer(tmp_path, background=background, world_size=1) as checkpointer:
        checkpointer.save(4, TorchState(optimizer=optimizer, scheduler=scheduler))
    other_optimizer, other = fresh()
    Checkpointer(tmp_path, world_size=1).load_latest(TorchState(optimizer=other_optimizer, scheduler=other))
    assert go_on(other_optimizer, other) == go_on(optimizer, scheduler)


def test_what_is_no_state_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="model is of type int, which has no state_dict"):
        TorchState(model=3)
    with pytest.raises(TypeError, match=r"loss is a torch.Tensor; save a training with TorchState.* float"):
        TorchState(loss=torch.ones(1))
    with pytest.raises(TypeError, match="betas is a tuple"):
        TorchState(betas=(0.9, 0.99))
    with pytest.raises(ValueError, match="random is the name of the random states' file"):
        TorchState(random=1)
    with pytest.raises(ValueError, match="no name for an entry"):
        TorchState(**{"a/b": 1})


def test_a_folder_that_others_wrote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"was not saved by TorchState: it has no torch-state.json"):
        TorchState().read(_saved(tmp_path))


def test_torch_is_not_imported_by_the_name_alone() -> None:
    program = """
import sys
from phalanx.checkpoint import TorchState
sys.exit(bool({"torch", "numpy", "random"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
