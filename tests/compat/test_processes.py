"""Small parts of torchelastic that programs use by themselves, beside torch's own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.compat.marks import shows_names

from phalanx.compat.old_etcd import cas_delay
from phalanx.compat.processes import SubprocessHandler, get_std_cm, get_subprocess_handler

Python = Callable[..., str]

USE_A_HANDLER = """
import signal, time
from torch.distributed.elastic.multiprocessing.subprocess_handler import get_subprocess_handler
for words in ((), (signal.SIGKILL,)):
    handler = get_subprocess_handler(
        "sh", ("-c", "echo $WORD $PWD $RANK; echo bad >&2; exec sleep 60"), {"WORD": "hello", "RANK": "3"},
        f"out{len(words)}.txt", f"err{len(words)}.txt", 3,
    )
    while "bad" not in open(f"err{len(words)}.txt").read():
        time.sleep(0.01)
    print(handler.local_rank_id, handler.proc.args, handler.close(*words), handler.proc.wait())
    print(open(f"out{len(words)}.txt").read(), open(f"err{len(words)}.txt").read())
"""


@pytest.mark.torch
@shows_names(
    "same", "elastic.multiprocessing.subprocess_handler", "SubprocessHandler", "get_subprocess_handler"
)
def test_a_handler_of_a_process_does_what_torchs_does(python: Python) -> None:
    ours = python(USE_A_HANDLER, compat=True)
    assert ours == python(USE_A_HANDLER)
    assert "hello" in ours
    ends = [line for line in ours.splitlines() if line.startswith("3 ")]
    assert [line.rpartition("None ")[2] for line in ends] == [str(-signal.SIGTERM), str(-signal.SIGKILL)]


@shows_names(
    "better",
    "elastic.multiprocessing.subprocess_handler",
    "SubprocessHandler",
    how="close() after the end is no error",
)
def test_closing_after_the_end_is_no_error(tmp_path: Path) -> None:
    """torch's raises ProcessLookupError."""
    out, err = str(tmp_path / "out"), str(tmp_path / "err")
    handler = get_subprocess_handler("sh", ("-c", "echo $0"), {}, out, err, 0)
    assert handler.proc.wait() == 0
    handler.close()
    handler.close()
    assert Path(out).read_text() == "sh\n"


def test_a_command_that_is_not_there_leaves_no_file_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SubprocessHandler("no-such-command", (), {}, str(tmp_path / "out"), None, 0, None)


@shows_names("same", "elastic.multiprocessing.api", "get_std_cm")
def test_a_stream_is_redirected_only_where_a_file_is_named() -> None:
    assert isinstance(get_std_cm("", nullcontext), nullcontext)
    with get_std_cm("file", nullcontext) as entered:
        assert entered == "file"


@shows_names("same", "elastic.rendezvous.etcd_store", "cas_delay")
def test_the_delay_before_another_attempt_is_a_short_sleep() -> None:
    assert cas_delay() is None  # type: ignore[func-returns-value]
