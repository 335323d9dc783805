"""What a process is doing, as the kernel tells it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from phalanx.multiprocessing.process_state import is_uninterruptible_state, read_proc_state


@pytest.mark.compat("name torch.distributed.elastic.utils.process_state.read_proc_state", "same")
def test_the_state_of_a_process_is_a_letter_and_none_when_it_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        process.send_signal(signal.SIGSTOP)
        give_up_at = time.monotonic() + 60
        while read_proc_state(process.pid) != "T" and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert read_proc_state(process.pid) == "T"
        process.kill()
    assert read_proc_state(process.pid) is None


@pytest.mark.compat("name torch.distributed.elastic.utils.process_state.is_uninterruptible_state", "same")
def test_one_state_cannot_be_interrupted() -> None:
    assert is_uninterruptible_state("D")
    assert not any(is_uninterruptible_state(one) for one in ("S", "R", "d", "", None))
