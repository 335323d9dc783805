"""Ranks that do not write return from a save at once: a load that follows is about what the writer has saved all the
same."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.thread_ranks import LIMIT_S, Ranks, Shared, together

from phalanx.checkpoint import Checkpointer, NoGoodStep
from phalanx.checkpoint.agreement_resume import _Looks


@pytest.fixture
def store() -> Shared:
    return Shared()


@pytest.fixture
def ranks(tmp_path: Path, store: Shared) -> Callable[..., Ranks]:
    def make(count: int, per_node: int = 0, **options: Any) -> Ranks:
        made = [
            Checkpointer(
                tmp_path / (f"node{rank // per_node}" if per_node else "steps"),
                per_node=bool(per_node),
                rank=rank,
                local_rank=rank % (per_node or count),
                world_size=count,
                store=store,
                timeout_s=LIMIT_S,
                **options,
            )
            for rank in range(count)
        ]
        for one in made:
            one._saves._rank_group()._name = "c"
        return made

    return make


def _writer(store: Shared, others: list[int]) -> Callable[[Path], None]:
    """Writes when the ``others`` have come to the load that follows, and only wait."""

    def write(folder: Path) -> None:
        store.wait_until_said(others)
        (folder / "weights").write_bytes(b"1")

    return write


def _files(saved: Any) -> list[str]:
    return sorted(path.name for path in saved.folder.iterdir())


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("per_node", [0, 2])
@pytest.mark.parametrize("is_latest", [True, False])
def test_what_the_writer_saves_while_others_come_to_the_load_is_loaded_by_all(
    ranks: Callable[..., Ranks], store: Shared, background: bool, per_node: int, is_latest: bool
) -> None:
    four = ranks(4, per_node, background=background)
    others = [rank for rank in range(4) if not four[rank]._settings.writes]

    def run(rank: Checkpointer) -> int:
        rank.save(7, _writer(store, others))
        loaded = rank.load_latest(_files) if is_latest else rank.load(7, _files)
        assert loaded is not None
        return loaded.step

    assert together(four, run) == [7] * 4


@pytest.mark.parametrize("is_latest", [True, False])
def test_a_step_that_comes_late_into_a_ranks_view_is_waited_for(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, is_latest: bool
) -> None:
    two = ranks(2)
    two[0].save(7, lambda folder: (folder / "weights").write_bytes(b"1"))
    steps, looks = two[1]._settings.directory.steps, list[int]()

    def late() -> list[int]:
        looks.append(1)
        return steps() if len(looks) > 4 else []

    monkeypatch.setattr(two[1]._settings.directory, "steps", late)
    found = together(two, lambda rank: rank.load_latest(_files) if is_latest else rank.load(7, _files))
    assert [each.step for each in found] == [7, 7]
    assert len(looks) > 4


def test_a_step_that_nobody_sees_is_not_waited_for(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ranks(2)
    two[0].save(7, lambda folder: (folder / "weights").write_bytes(b"1"))
    steps, looks = two[1]._settings.directory.steps, list[int]()

    def counted() -> list[int]:
        looks.append(1)
        return steps()

    monkeypatch.setattr(two[1]._settings.directory, "steps", counted)
    assert all("cannot be loaded" in str(error) for error in together(two, lambda rank: rank.load(8)))
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("first", "then", "is_waited_for"),
    [
        ([100], [100], True),  # 200 is what another rank sees
        ([], [], True),
        ([100, 200], [100], False),  # it was in view, and is gone
        ([100, 200], [300], False),
        ([100], [300], False),  # retention has removed it since
        ([100, 300], [100, 300], True),  # an old view may still have what was superseded
        ([100], [100, 200], False),
    ],
    ids=str,
)
def test_a_step_that_was_removed_is_not_waited_for_as_one_that_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[int], then: list[int], is_waited_for: bool
) -> None:
    class Waits(Exception):
        pass

    def wait(_: float) -> None:
        raise Waits

    directory = Checkpointer(tmp_path, world_size=1)._settings.directory
    views = iter([first, then])
    monkeypatch.setattr(directory, "steps", lambda: next(views))
    monkeypatch.setattr("phalanx.checkpoint.agreement_resume.time.sleep", wait)
    looks = _Looks(directory, LIMIT_S)
    assert looks.listing(()).steps == tuple(first)
    if is_waited_for:
        with pytest.raises(Waits):
            looks.listing((100, 200))
    else:
        assert looks.listing((100, 200)).steps == tuple(then)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_another_job_removes_while_it_is_looked_at_is_looked_for_again_by_all(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    readers = ranks(count)
    trainer = Checkpointer(readers[0]._settings.directory.folder, keep=1, world_size=1)
    trainer.save(100, {"a": 1})
    together_at, lock, saved = threading.Barrier(count), threading.Lock(), list[int]()

    def look(rank: Checkpointer) -> None:
        real = rank._settings.directory.checked

        def checked(step: int, **options: Any) -> Any:
            if step == 100:
                together_at.wait(LIMIT_S)  # all have listed it
                with lock:
                    if not saved:
                        saved.append(1)
                        trainer.save(200, {"a": 2})
            return real(step, **options)

        monkeypatch.setattr(rank._settings.directory, "checked", checked)

    for rank in readers:
        look(rank)
    assert [found.step for found in together(readers, lambda rank: rank.load_latest())] == [200] * count


@pytest.mark.parametrize("count", [1, 2])
def test_a_folder_that_is_emptied_while_it_is_looked_at_does_not_begin_a_training_anew(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    readers = ranks(count)
    folder = readers[0]._settings.directory.folder
    Checkpointer(folder, world_size=1).save(100, {"a": 1})

    def look(rank: Checkpointer) -> None:
        real = rank._settings.directory.checked

        def checked(step: int, **options: Any) -> Any:
            shutil.rmtree(folder / "step-000000100", ignore_errors=True)
            return real(step, **options)

        monkeypatch.setattr(rank._settings.directory, "checked", checked)

    for rank in readers:
        look(rank)
    outcomes = together(readers, lambda rank: rank.load_latest())
    assert all(isinstance(outcome, NoGoodStep) for outcome in outcomes), outcomes
