"""The file store: what others did meanwhile, how far who was killed had come, and what a file server does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.stories import PATIENCE_S, batches, within

from phalanx.store import file, file_log
from phalanx.store.file_leases import ENDED, NO_FILE, LeaseFiles
from phalanx.store.file_replica import Replica
from phalanx.store.machine import (
    EndWatch,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    TransactionAsked,
    WatchAsked,
)
from phalanx.store.port import (
    Answer,
    Compacted,
    Get,
    LeaseExpired,
    Put,
    Refused,
    StoreReset,
    Unclear,
)

A = "/phalanx/job/a"
# Where a folder is to seem silent, the test makes the attempt short; else this machine may be slow.
open_file = functools.partial(file.open_file, attempt_s=PATIENCE_S)
# Each entry is synced to the disk, which these tests do thousands of times; what they look at is the same in memory.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def small(monkeypatch: Any) -> None:
    """Segments of four entries, so that they are sealed and cleared away all the time."""
    monkeypatch.setattr(file_log, "ENTRIES_PER_SEGMENT", 4)


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="phalanx-store-", dir=FAST) as parent:
        yield f"{parent}/store"


def opened(folder: str) -> Replica:
    replica = Replica(folder)
    replica.open()
    return replica


def put(replica: Replica, key: str, value: bytes = b"x", lease: int = 0) -> int:
    answer = replica.perform(TransactionAsked(0, then=(Put(key, value, lease),)))
    assert isinstance(answer, Answer)
    return answer.revision


def get(replica: Replica, key: str) -> bytes | None:
    answer = replica.perform(TransactionAsked(0, then=(Get(key),)))
    assert isinstance(answer, Answer)
    return answer.results[0][0].value if answer.results[0] else None


def entries(folder: str) -> list[Path]:
    """The published entries, the newest last."""
    return sorted(Path(folder, "segments").glob("*/*"))


def publish(entry: Path, content: bytes) -> None:
    """Put a file where a client looks all the time, which is not to see the half of it."""
    whole = entry.parents[2] / "whole"
    whole.write_bytes(content)
    whole.rename(entry)


# The log


def test_segments_and_snapshots_that_nobody_needs_are_cleared_away(folder: str, small: None) -> None:
    replica = opened(folder)
    for number in range(100):
        put(replica, f"{A}/{number}")
    assert len(list(Path(folder, "snapshots").iterdir())) == 2
    assert len(list(Path(folder, "segments").iterdir())) <= 3
    assert len(entries(folder)) <= 12
    assert list(Path(folder, "scratch").iterdir()) == []
    late = opened(folder)
    assert all(get(late, f"{A}/{number}") == b"x" for number in range(100))
    assert put(late, A) == 102


def test_large_entries_fill_a_segment_sooner(folder: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(file_log, "BYTES_PER_SEGMENT", 10_000)
    replica = opened(folder)
    for _ in range(50):
        put(replica, A, b"x" * 1000)
    assert len(entries(folder)) < 40
    assert get(opened(folder), A) == b"x" * 1000


def test_who_sleeps_while_all_it_knows_is_cleared_away_writes_after_it_nevertheless(
    folder: str, small: None
) -> None:
    sleeper, other = opened(folder), opened(folder)
    put(sleeper, A, b"old")
    for number in range(50):
        put(other, A, b"%d" % number)
    # It sleeps between its look and its write: it has the place, and tries to publish there.
    path = sleeper._log.prepare(b"a request")
    with pytest.raises(file_log.Gone):
        sleeper._log.publish(path)
    assert get(sleeper, A) == b"49"
    assert put(sleeper, A, b"new") == 53
    assert get(other, A) == b"new"


def test_a_watch_of_who_lags_too_far_is_told_that_it_has_a_gap(folder: str, small: None) -> None:
    sleeper, other = opened(folder), opened(folder)
    sleeper.perform(WatchAsked("watch", A, 2))
    for _ in range(3):
        put(other, A)
    sleeper.look()
    told = [one.batch.revision for one in sleeper.news if isinstance(one, Notify)]
    assert told == [2, 3, 4]
    sleeper.news.clear()
    for _ in range(50):
        put(other, A)
    sleeper.look()
    [end] = [one for one in sleeper.news if isinstance(one, EndWatch)]
    assert isinstance(end.error, Compacted)
    assert get(sleeper, A) == b"x"


def test_a_new_client_knows_at_least_one_segment_of_history(folder: str, small: None) -> None:
    replica = opened(folder)
    last = max(put(replica, A) for _ in range(50))
    late = opened(folder)
    late.perform(WatchAsked("watch", A, last - 2))
    told = [one.batch.revision for one in late.news if isinstance(one, Notify)]
    assert told == [last - 2, last - 1, last]


def test_a_request_that_changes_nothing_leaves_no_entry(folder: str) -> None:
    replica = opened(folder)
    put(replica, A)
    before = entries(folder)
    get(replica, A)
    replica.perform(RevokeAsked(0, 7))
    with pytest.raises(LeaseExpired):
        put(replica, A, lease=7)
    for ttl_s in (0.0, float("nan"), float("inf")):
        with pytest.raises(Refused):
            replica.perform(GrantAsked(0, ttl_s))
    assert entries(folder) == before


def test_processes_on_one_folder_count_together(folder: str, tmp_path: Path) -> None:
    script = """
import asyncio, sys
from phalanx.store import file_log
from phalanx.store.file import open_file
from phalanx.store.port import Compare, Field, Put

file_log.ENTRIES_PER_SEGMENT = 8

async def count():
    store = await open_file(sys.argv[1], attempt_s=60)
    for _ in range(40):
        while True:
            item = await store.get("n")
            guard = Compare("n", Field.MOD_REVISION, item.mod_revision if item else 0)
            total = int(item.value) + 1 if item else 1
            if (await store.transaction((guard,), (Put("n", b"%d" % total),))).succeeded:
                break
    await store.close()

asyncio.run(count())
"""
    source = str(Path(__file__).parents[2] / "src")
    counting = [
        subprocess.Popen([sys.executable, "-c", script, folder], env={**os.environ, "PYTHONPATH": source})
        for _ in range(4)
    ]
    assert [process.wait(4 * PATIENCE_S) for process in counting] == [0] * 4
    assert get(opened(folder), "n") == b"160"


# Death at any moment


CALLS = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir"}


def _work_until_call(folder: str, number: int, told: int) -> None:
    """In a forked child: do all that a client does, and die before the given call to the file server."""
    left = number

    def audit(event: str, _: Any) -> None:
        nonlocal left
        if event in CALLS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    replica = opened(folder)
    lease = replica.perform(GrantAsked(0, 30.0))
    assert isinstance(lease, int)
    os.write(told, b"%d\n" % lease)
    for count in range(12):
        put(replica, f"{A}/{count}", lease=lease)
        os.write(told, b"%d\n" % count)
        replica.perform(RenewAsked(0, lease))


def _dies_before_call(folder: str, number: int) -> tuple[int, list[int]]:
    """How the child ended, and what it told before."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _work_until_call(folder, number, writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as pipe:
        told = [int(line) for line in pipe]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


@pytest.mark.parametrize("part", range(4))
def test_who_is_killed_at_any_call_has_done_what_it_said_and_the_store_goes_on(
    folder: str, small: None, part: int
) -> None:
    for number in range(1 + part, 2000, 4):
        shutil.rmtree(folder, ignore_errors=True)
        status, told = _dies_before_call(folder, number)
        replica = opened(folder)
        found = [count for count in range(12) if get(replica, f"{A}/{count}") is not None]
        assert found[: len(told[1:])] == told[1:], "what was told is there"
        assert len(found) <= len(told[1:]) + 1, "and at most what was under way"
        if told:
            replica.perform(RenewAsked(0, told[0]))
        for count in range(6):
            put(replica, f"{A}/after/{count}")
        assert get(opened(folder), f"{A}/after/5") == b"x"
        if status == 0:
            assert number > 100, "it was killed at many calls before"
            return
        assert status == -signal.SIGKILL
    pytest.fail("it never came to its end")


# What a file server does


@contextlib.contextmanager
def _lost_answers(monkeypatch: Any, name: str) -> Iterator[list[str]]:
    """Every second call to the server is done, but its answer is lost and the kernel asks again, as NFS does."""
    genuine = getattr(os, name)
    lost: list[str] = []
    calls = 0

    def call(old: str, new: str) -> None:
        nonlocal calls
        calls += 1
        genuine(old, new)
        if calls % 2:
            lost.append(new)
            genuine(old, new)  # raises: what it asks for has been done

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield lost


def test_a_link_whose_answer_was_lost_is_no_second_write(folder: str, small: None, monkeypatch: Any) -> None:
    with _lost_answers(monkeypatch, "link") as lost:
        replica = opened(folder)
        revisions = [put(replica, f"{A}/{number}") for number in range(20)]
    assert len(lost) > 10
    assert revisions == list(range(2, 22))
    assert get(opened(folder), f"{A}/19") == b"x"


def test_a_renewal_whose_answer_was_lost_is_a_renewal(tmp_path: Path, monkeypatch: Any) -> None:
    leases = LeaseFiles(str(tmp_path))
    leases.begin(1)
    with _lost_answers(monkeypatch, "rename") as lost:
        counts = [int(leases.renew(1)) for _ in range(10)]
    assert len(lost) > 3
    assert counts == sorted(counts)
    assert counts[-1] >= 10


def test_a_folder_that_does_not_answer_makes_requests_unclear_and_may_come_back(folder: str) -> None:
    async def story() -> None:
        store = await open_file(folder, poll_s=3600.0)
        await store.put(A, b"1")
        store._attempt_s = 1.0  # type: ignore[attr-defined] # what is asked from here on is in vain
        next_entry = entries(folder)[-1].with_name("0001")
        os.mkfifo(next_entry)  # whoever opens it waits until somebody writes
        with pytest.raises(Unclear, match=r"did not answer within 1 s"):
            await store.put(A, b"2")
        with pytest.raises(Unclear):
            await store.get(A)
        writer = os.open(next_entry, os.O_RDWR | os.O_NONBLOCK)  # the thread wakes, with nothing to read yet
        os.unlink(next_entry)
        os.close(writer)
        store._attempt_s = PATIENCE_S  # type: ignore[attr-defined]
        item = None
        while item is None or item.value != b"3":
            with contextlib.suppress(Unclear):
                await store.put(A, b"3")
                item = await store.get(A)
        await store.close()

    asyncio.run(within(story()))


def test_a_client_whose_folder_hangs_can_be_closed(folder: str) -> None:
    async def story() -> int:
        store = await open_file(folder)
        store._attempt_s = 1.0  # type: ignore[attr-defined] # what is asked from here on is in vain
        fifo = Path(folder, "segments", next(iter(os.listdir(f"{folder}/segments"))), "0000")
        os.mkfifo(fifo)
        with pytest.raises(Unclear):
            await store.put(A, b"1")
        await store.close()
        return os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # lets the thread end

    os.close(asyncio.run(within(story())))


def test_a_folder_without_access_is_unclear_until_it_has_some(folder: str) -> None:
    async def story() -> None:
        store = await open_file(folder)
        await store.put(A, b"1")
        os.rename(f"{folder}/scratch", f"{folder}/away")
        with pytest.raises(Unclear, match="cannot be used"):
            await store.put(A, b"2")
        os.rename(f"{folder}/away", f"{folder}/scratch")
        await store.put(A, b"3")
        await store.close()

    asyncio.run(within(story()))


# What people do to a folder


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage\n", b"phalanx file store 1 5 00\nhello", b"\x00" * 4096],
    ids=["empty", "garbage", "another sum", "zeros"],
)
def test_a_damaged_entry_is_refused_with_its_name(folder: str, content: bytes) -> None:
    async def story() -> None:
        store = await open_file(folder)
        revision = await store.put(A, b"1")
        watch = store.watch(A, revision + 1)
        next_entry = entries(folder)[-1].with_name("0001")
        publish(next_entry, content)
        with pytest.raises(Refused, match=f"damaged: .*/0001 has {len(content)} bytes"):
            await batches(watch, 1)
        with pytest.raises(Refused, match="Use another folder"):
            await store.put(A, b"2")
        await store.close()
        with pytest.raises(Refused, match="damaged"):
            await open_file(folder)

    asyncio.run(within(story()))


def test_half_an_entry_is_refused(folder: str) -> None:
    replica = opened(folder)
    put(replica, A)
    put(replica, A)
    entry = entries(folder)[-1]
    entry.write_bytes(entry.read_bytes()[:-1])
    with pytest.raises(Refused, match="damaged"):
        opened(folder)


def test_an_entry_of_another_version_is_refused(folder: str) -> None:
    replica = opened(folder)
    path = replica._log.prepare(b"something that only later versions know")
    assert replica._log.publish(path)
    with pytest.raises(Refused, match="another version"):
        opened(folder)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"/\0etc", b"", b"../../elsewhere", b"00000001-" + b"g" * 16])
def test_a_seal_that_names_no_segment_is_refused(folder: str, name: bytes) -> None:
    async def story() -> None:
        store = await open_file(folder)
        watch = store.watch(A, await store.put(A, b"1") + 1)
        publish(entries(folder)[-1].with_name("0001"), file_log._framed(b"s" + name))
        with pytest.raises(Refused, match=r"damaged: .*/0001 names no segment"):
            await batches(watch, 1)
        with pytest.raises(Refused, match="Use another folder"):
            await store.put(A, b"2")
        await store.close()

    asyncio.run(within(story()))


@pytest.mark.parametrize(
    "snapshot", [b"\xff\xfe abc\n{}", b"a\0b abc\n{}", b"00000000-0123456789abcdef abc\n" + b"[" * 100_000]
)
def test_a_snapshot_of_nonsense_is_refused(folder: str, snapshot: bytes) -> None:
    opened(folder)
    Path(folder, "snapshots", "00000000").write_bytes(file_log._framed(snapshot))
    with pytest.raises(Refused, match="damaged"):
        opened(folder)


def test_what_people_put_among_the_segments_stays_there(folder: str, small: None) -> None:
    replica = opened(folder)
    Path(folder, "segments", "notes").mkdir()
    for number in range(30):
        put(replica, f"{A}/{number}")
    assert Path(folder, "segments", "notes").exists()
    assert len(list(Path(folder, "segments").iterdir())) <= 4


@pytest.mark.parametrize("content", [b"", b"{}", b"no snapshot\n{}"])
def test_a_damaged_snapshot_is_refused(folder: str, content: bytes) -> None:
    opened(folder)
    snapshot = Path(folder, "snapshots", "00000000")
    framed = snapshot.read_bytes()
    snapshot.write_bytes(content or framed[:-3])
    with pytest.raises(Refused, match="damaged"):
        opened(folder)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_deleted_folder_is_a_lost_store(folder: str, is_made_again: bool) -> None:
    async def story() -> None:
        store = await open_file(folder)
        revision = await store.put(A, b"1")
        watch = store.watch(A, revision + 1)
        os.rename(folder, f"{folder}.old")
        if is_made_again:
            await (await open_file(folder)).close()
        with pytest.raises(StoreReset):
            await batches(watch, 1)
        with pytest.raises(StoreReset):
            await store.get(A)
        await store.close()
        new = await open_file(folder)
        assert await new.get(A) is None
        await new.close()

    asyncio.run(within(story()))


def test_a_store_is_its_owners_alone(folder: str) -> None:
    opened(folder)
    assert all(stat.S_IMODE(os.stat(Path(folder, part)).st_mode) == 0o700 for part in os.listdir(folder))
    os.chmod(Path(folder, "snapshots"), 0o777)
    with pytest.raises(Refused, match="open to others"):
        opened(folder)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def story(path: str) -> None:
        with pytest.raises(Refused, match="cannot be the folder of a store"):
            await open_file(path)

    for name in ("file", "file/below"):
        asyncio.run(within(story(str(tmp_path / name))))


# Leases


def test_only_one_of_a_renewal_and_an_end_is_done(tmp_path: Path) -> None:
    holder, judge = LeaseFiles(str(tmp_path)), LeaseFiles(str(tmp_path))
    holder.begin(1)
    assert holder.renew(1) == "1"
    assert judge.end(1, "0") is False
    assert holder.renew(1) == "2"
    assert judge.end(1, "2") is True
    assert holder.renew(1) == ENDED
    assert judge.end(1, "2") is True, "ended is ended, whoever did it"


def test_silence_is_measured_by_ones_own_clock_and_looks(tmp_path: Path) -> None:
    holder, judge = LeaseFiles(str(tmp_path)), LeaseFiles(str(tmp_path))
    holder.begin(1)
    looks = [at / 2 for at in range(2000, 2018)]  # nine seconds, and nobody knows since when it is silent
    assert [at for at in looks if judge.silent({1: 6.0}, at)] == [at for at in looks if at >= 1006.0]
    holder.renew(1)
    assert not judge.silent({1: 6.0}, 1009.0)
    assert not judge.silent({1: 6.0}, 1009.5)


def test_a_lease_whose_file_stays_away_is_silent(tmp_path: Path) -> None:
    holder, judge = LeaseFiles(str(tmp_path)), LeaseFiles(str(tmp_path))
    holder.begin(1)
    assert not judge.silent({1: 6.0}, 1000.0)
    (tmp_path / "1.0").unlink()
    assert [at for at in range(1001, 1009) if judge.silent({1: 6.0}, float(at))] == [1007, 1008]
    (tmp_path / "1.1").touch()  # a listing was out of date for long
    assert judge.end(1, NO_FILE) is False
    (tmp_path / "1.1").unlink()
    assert judge.end(1, NO_FILE) is True
    assert holder.renew(1) == ENDED


@pytest.mark.parametrize("is_folder", [False, True], ids=["its file", "all leases"])
def test_a_lease_that_was_deleted_by_hand_ends_and_others_are_granted(folder: str, is_folder: bool) -> None:
    async def story() -> None:
        store, other = await open_file(folder), await open_file(folder)
        lease = await store.grant(3.0)  # it must not end by itself before its file is deleted
        watch = other.watch(A, await store.put(A, b"1", lease=lease) + 1)
        if is_folder:
            shutil.rmtree(Path(folder, "leases"))
        else:
            Path(folder, "leases", f"{lease}.0").unlink()  # noqa: ASYNC240
        [batch] = await batches(watch, 1)
        assert [change.is_delete for change in batch.changes] == [True]
        with pytest.raises(LeaseExpired):
            await store.renew(lease)
        await store.renew(await store.grant(30.0))
        await store.close()
        await other.close()

    asyncio.run(within(story()))


def test_a_look_that_is_late_gives_every_lease_its_whole_time(tmp_path: Path) -> None:
    """The judge or the file server was frozen: nobody could be seen to renew."""
    judge = LeaseFiles(str(tmp_path))
    judge.begin(1)
    judge.begin(2)
    ttls_s = {1: 6.0, 2: 60.0}
    assert not judge.silent(ttls_s, 100.0)
    assert not judge.silent(ttls_s, 105.0), "five seconds are much for the first, and little for the second"
    assert not judge.silent(ttls_s, 106.0)
    assert [number for at in range(107, 112) for number, _ in judge.silent(ttls_s, float(at))] == [1]
    found = [(number, at) for at in range(112, 163, 5) for number, _ in judge.silent({2: 60.0}, float(at))]
    assert found == [(2, 162)]


def test_a_lease_that_was_ended_by_who_died_then_is_ended_by_others(folder: str) -> None:
    replica, other = opened(folder), opened(folder)
    lease = replica.perform(GrantAsked(0, 30.0))
    assert isinstance(lease, int)
    put(replica, A, lease=lease)
    assert LeaseFiles(f"{folder}/leases").end(lease, "0")  # and its entry in the log was never written
    other.look()
    assert get(other, A) is None
    with pytest.raises(LeaseExpired):
        replica.perform(RenewAsked(0, lease))
    assert os.listdir(f"{folder}/leases") == []


def test_a_holder_that_finds_its_lease_ended_makes_it_so_for_all(folder: str) -> None:
    replica, other = opened(folder), opened(folder)
    lease = replica.perform(GrantAsked(0, 30.0))
    assert isinstance(lease, int)
    put(replica, A, lease=lease)
    assert LeaseFiles(f"{folder}/leases").end(lease, "0")
    with pytest.raises(LeaseExpired):
        replica.perform(RenewAsked(0, lease))
    assert get(other, A) is None


def test_old_files_of_leases_that_nobody_knows_are_cleared_away(folder: str, small: None) -> None:
    replica = opened(folder)
    lease = replica.perform(GrantAsked(0, 30.0))
    old, new = Path(folder, "leases", "77.5"), Path(folder, "leases", "78.0")
    for path in (old, new, Path(folder, "leases", f"{lease}.0")):
        path.touch()
        if path != new:
            os.utime(path, (time.time() - 10_000,) * 2)
    for _ in range(10):
        put(replica, A)
    assert sorted(os.listdir(f"{folder}/leases")) == sorted([new.name, f"{lease}.0"])


def test_a_frozen_process_loses_its_lease_and_no_other_does(folder: str) -> None:
    script = """
import asyncio, sys
from phalanx.store.file import open_file

async def hold():
    store = await open_file(sys.argv[1], attempt_s=60)
    lease = await store.grant(2.0)
    await store.put("/phalanx/job/" + sys.argv[2], b"x", lease=lease)
    print("ready", flush=True)
    while True:
        await store.renew(lease)
        await asyncio.sleep(0.3)

asyncio.run(hold())
"""
    source = str(Path(__file__).parents[2] / "src")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, folder, name],
            env={**os.environ, "PYTHONPATH": source},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for name in ("frozen", "awake")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

        async def story() -> None:
            store = await open_file(folder)
            listing = await store.list("/phalanx/job/")
            assert len(listing.items) == 2
            processes[0].send_signal(signal.SIGSTOP)
            [batch] = await batches(store.watch("/phalanx/job/frozen", listing.revision + 1), 1)
            assert batch.changes[0].is_delete
            assert await store.get("/phalanx/job/awake") is not None
            processes[0].send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(processes[0].wait, PATIENCE_S) == 1, (
                "LeaseExpired, at its next renewal"
            )
            await store.close()

        asyncio.run(within(story(), 3 * PATIENCE_S))
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
