from __future__ import annotations

import signal

import pytest

from phalanx.agent.evidence.explanations import (
    CgroupLevel,
    Explanation,
    Facts,
    OutOfMemory,
    explain,
    is_about,
    out_of_memory,
)

MIB, GIB = 1 << 20, 1 << 30
OWN = CgroupLevel(path="/job", limit_bytes=57 * MIB, kills_before=3, kills_after=3)
ROSE = CgroupLevel(path="/job", limit_bytes=57 * MIB, kills_before=3, kills_after=4)
FREE = CgroupLevel(path="/job", kills_before=0, kills_after=1)
MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,"
    "task=python3,pid=17,uid=0"
)
MEMCG_KILLED = (
    "Memory cgroup out of memory: Killed process 17 (python3) total-vm:211880kB, anon-rss:58112kB, file-rss:3788kB, "
    "shmem-rss:0kB, UID:0 pgtables:168kB oom_score_adj:0"
)
OUTER_SIZES = "(limit 1.5 GiB; the worker had up to 1 GiB)"
OUTER = MEMCG.replace("oom_memcg=/job,", "oom_memcg=/pod,")
GLOBAL = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/job,"
    "task=python3,pid=17,uid=0"
)
GLOBAL_KILLED = "Out of memory: Killed process 17 (python3) total-vm:9kB, anon-rss:2097152kB, file-rss:0kB"
SEGFAULT = "python3[17]: segfault at 0 ip 00007f1 sp 00007f2 error 4 in libtorch_cuda.so[7f1+2000]"
XID = "NVRM: Xid (PCI:0000:17:00): 31, pid=17, name=python3, Ch 00000008, MMU Fault"
POISON = "Memory failure: 0x17f: Killing python3:17 due to hardware memory corruption"


def of(number: int, **facts: object) -> Explanation:
    return explain(Facts(pid=17, signal=number, **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_whom_something_of_ours_has_ended_nobody_else_is_suspected_of(number: signal.Signals) -> None:
    why = "its timer ended it, because it was too slow in train.py#7"
    assert of(number, why_ended=why, was_asked_to_stop=True) == Explanation(sentences=(why,), certain=why)


CERTAIN_OOM = {
    "cgroup": (
        {"kernel_lines": (MEMCG, MEMCG_KILLED), "cgroups": (ROSE,), "peak_bytes": 55 * MIB},
        "the kernel killed it because its cgroup was out of memory (limit 57 MiB; the worker had up to 55 MiB)",
        "out of memory (limit 57 MiB; the worker had up to 55 MiB)",
    ),
    "the last line is still to come": (
        {"kernel_lines": (MEMCG,), "cgroups": (ROSE,)},
        "the kernel killed it because its cgroup was out of memory (limit 57 MiB)",
        "out of memory (limit 57 MiB)",
    ),
    "the kernel limits its own words": (  # it says the long ones ten times in five seconds, and then only the last
        {"kernel_lines": (MEMCG_KILLED,)},
        "the kernel killed it because its cgroup was out of memory (the worker had up to 60 MiB)",
        "out of memory (the worker had up to 60 MiB)",
    ),
    "an outer cgroup": (
        {
            "kernel_lines": (OUTER, MEMCG_KILLED),
            "cgroups": (FREE, CgroupLevel(path="/pod", limit_bytes=3 * GIB // 2)),
            "peak_bytes": GIB,
        },
        f"the kernel killed it because the cgroup /pod around it was out of memory {OUTER_SIZES}",
        f"out of memory {OUTER_SIZES}",
    ),
    "the machine": (
        {"kernel_lines": (GLOBAL, GLOBAL_KILLED), "cgroups": (ROSE,)},
        "the kernel killed it because the machine was out of memory (the worker had up to 2 GiB)",
        "out of memory (the whole machine; the worker had up to 2 GiB)",
    ),
    "although it was being stopped": (
        {"kernel_lines": (MEMCG,), "cgroups": (ROSE,), "was_asked_to_stop": True},
        "the kernel killed it because its cgroup was out of memory (limit 57 MiB)",
        "out of memory (limit 57 MiB)",
    ),
}


@pytest.mark.parametrize(("facts", "first", "certain"), CERTAIN_OOM.values(), ids=CERTAIN_OOM)
def test_whom_the_kernel_names_it_has_killed(facts: dict[str, object], first: str, certain: str) -> None:
    said = of(signal.SIGKILL, **facts)

    assert said.sentences[0] == first
    assert said.certain == certain
    assert "less" in said.sentences[1], "what to do"


@pytest.mark.parametrize(
    ("cgroups", "whose"),
    [
        ((ROSE,), "its cgroup was out of memory (limit 57 MiB; the worker had up to 55 MiB)"),
        (
            (FREE, CgroupLevel(path="/pod", limit_bytes=GIB), CgroupLevel(path="/", limit_bytes=2 * GIB)),
            "the cgroup /pod around it was out of memory (limit 1 GiB; the worker had up to 55 MiB)",
        ),
        (
            (FREE, CgroupLevel(path="/pod", limit_bytes=GIB, is_limit_hit=True), OWN),
            "the cgroup /pod around it was out of memory (limit 1 GiB; the worker had up to 55 MiB)",
        ),
        ((FREE,), "an outer cgroup or the machine was out of memory (the worker had up to 55 MiB)"),
        (
            (CgroupLevel(path="/moved", limit_bytes=MIB, kills_after=1), OWN),
            "its cgroup was out of memory (limit 1 MiB; the worker had up to 55 MiB)",
        ),
    ],
    ids=["own limit", "tightest limit", "limit that was hit", "no limit to be seen", "moved into it"],
)
def test_a_counter_alone_says_probably(cgroups: tuple[CgroupLevel, ...], whose: str) -> None:
    said = of(signal.SIGKILL, cgroups=cgroups, peak_bytes=55 * MIB)

    assert said.sentences[0].startswith(f"probably the kernel killed it because {whose}: ")
    assert (
        "it has killed one process of this cgroup for that, which another may have been" in said.sentences[0]
    )
    assert not said.certain


@pytest.mark.parametrize(
    ("facts", "looked"),
    [
        ({"cgroups": (OWN,)}, "its cgroups count no kill for want of memory"),
        (
            {"cgroups": (OWN,), "is_log_readable": True},
            "its cgroups count no kill for want of memory, and the kernel's log does not name it",
        ),
        ({"is_log_readable": True}, "the kernel's log does not name it"),
        ({}, "neither its cgroup's counters nor the kernel's log can be read here"),
        (
            {"cgroups": (OWN, CgroupLevel(path="/", kills_before=1, kills_after=9))},
            "its cgroups count no kill for want of memory",
        ),
        (
            {"kernel_lines": (MEMCG.replace("pid=17", "pid=170"),), "cgroups": (OWN,)},
            "its cgroups count no kill for want of memory",
        ),
    ],
    ids=["counters", "both", "log", "neither", "a neighbour's death", "another pid"],
)
def test_without_a_sign_it_says_who_else_kills_and_nothing_of_memory_for_sure(
    facts: dict[str, object], looked: str
) -> None:
    said = of(signal.SIGKILL, **facts)

    assert said.sentences[0] == (
        f"this launcher did not kill it; {looked}: somebody with kill -9, an early-OOM daemon, or a memory limit that "
        "cannot be seen from here (Slurm, Kubernetes) may have"
    )
    assert not said.certain


def test_who_did_not_stop_in_time_was_probably_killed_by_the_launcher() -> None:
    said = of(signal.SIGKILL, was_asked_to_stop=True, cgroups=(ROSE,))

    assert said.sentences == (
        "probably this launcher killed it: it had been asked to stop, and still ran when its grace was over",
    )


def test_a_failure_beside_a_kill_may_come_of_it() -> None:
    said = of(0, cgroups=(ROSE,))

    assert said.sentences[0] == (
        "while it ran, the kernel killed a process of its cgroup because its cgroup was out of memory (limit 57 MiB): "
        "one that this worker had started may be the reason of its failure"
    )
    assert not said.certain
    assert of(0, cgroups=(OWN,)) == of(0) == of(0, cgroups=(ROSE,), was_asked_to_stop=True) == Explanation()


BUS = {
    "full": ({"shm_free_bytes": 0, "shm_total_bytes": 64 * MIB}, "/dev/shm is full (64 MiB), and", True),
    "nearly full": ({"shm_free_bytes": 8192, "shm_total_bytes": 8 * GIB}, "/dev/shm is full (8 GiB), and", True),
    "tiny and free": (
        {"shm_free_bytes": MIB, "shm_total_bytes": MIB},
        "probably /dev/shm has only 1 MiB and may have been full until the worker died: give it more",
        False,
    ),
    "Docker's default": (
        {"shm_free_bytes": 60 * MIB, "shm_total_bytes": 64 * MIB},
        "probably /dev/shm has only 64 MiB and may have been full until the worker died: give it more",
        False,
    ),
    "roomy": (
        {"shm_free_bytes": 20 * GIB, "shm_total_bytes": 24 * GIB},
        "SIGBUS: /dev/shm has room (20 GiB of 24 GiB free), unless the dead worker filled it; a mapped",
        False,
    ),
    "unknown": ({}, "SIGBUS: /dev/shm was full, or a mapped file was cut short while it was in use", False),
    "broken memory": (
        {"kernel_lines": (POISON,), "shm_free_bytes": 0, "shm_total_bytes": MIB},
        "a memory module of this machine is broken (hardware memory corruption): have the machine looked at",
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "first", "is_certain"), BUS.values(), ids=BUS)
def test_a_bus_error_is_a_full_shared_memory_or_a_file_or_hardware(
    facts: dict[str, object], first: str, is_certain: bool
) -> None:
    said = of(signal.SIGBUS, **facts)

    assert said.sentences[0].startswith(first)
    assert bool(said.certain) == is_certain
    assert not said.certain or said.sentences[0].startswith(said.certain)
    assert ("--shm-size" in said.sentences[0]) == ("/dev/shm is" in first or "/dev/shm has only" in first)


NO_CORE = "no core dump was written, though the limit allows one; kernel.core_pattern is "
CORES = {
    "limit": (
        {"has_core": False, "core_limit_bytes": 0, "core_pattern": "core"},
        "no core dump was written: the limit is 0; `ulimit -c unlimited` before the start gives one",
    ),
    "written": (
        {"has_core": True, "core_pattern": "core.%p"},
        "a core dump was written in the folder that the worker was in (kernel.core_pattern is core.%p)",
    ),
    "written elsewhere": (
        {"has_core": True, "core_pattern": "/var/crash/core.%p"},
        "a core dump was written (kernel.core_pattern is /var/crash/core.%p)",
    ),
    "systemd": (
        {"has_core": True, "core_limit_bytes": 0, "core_pattern": "|/lib/systemd/systemd-coredump %P %u"},
        "a core dump was handed to /lib/systemd/systemd-coredump; coredumpctl info 17 shows it",
    ),
    "apport": (
        {"has_core": True, "core_pattern": "|/usr/share/apport/apport -p%p"},
        "a core dump was handed to /usr/share/apport/apport",
    ),
    "folder": (
        {"has_core": False, "core_pattern": "core"},
        NO_CORE + "core: is its folder writable, and its disk not full?",
    ),
    "broken program": (
        {"has_core": False, "core_limit_bytes": 0, "core_pattern": "|/gone"},
        NO_CORE + "|/gone: does its program work?",
    ),
}


@pytest.mark.parametrize(("facts", "last"), CORES.values(), ids=CORES)
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGBUS"])
def test_where_the_core_is_or_how_to_get_one(name: str, facts: dict[str, object], last: str) -> None:
    assert of(signal.Signals[name], **facts).sentences[-1] == last


def test_of_a_core_that_nobody_could_look_for_nothing_is_said() -> None:
    assert not any("core dump" in one for one in of(signal.SIGSEGV, core_pattern="core").sentences)


def test_a_native_crash_is_explained_with_the_kernels_own_words_if_it_has_any() -> None:
    said = of(signal.SIGSEGV, kernel_lines=("one", "two", SEGFAULT, XID * 9))

    assert said.sentences[0].startswith("SIGSEGV: it touched memory that is not its own")
    assert said.sentences[1:] == (f"the kernel says: {SEGFAULT}", f"the kernel says: {(XID * 9)[:200]}")
    assert not said.certain


def test_a_signal_that_somebody_sent_is_told_apart_from_one_of_ours() -> None:
    assert of(signal.SIGTERM).sentences == (
        "SIGTERM: this launcher did not send it; the scheduler, a user or the job itself did",
    )
    assert of(signal.SIGTERM, was_asked_to_stop=True) == Explanation()
    assert of(signal.SIGRTMAX - 1).sentences[0].startswith("signal 63: this launcher did not send it")


@pytest.mark.parametrize("number", [0, *sorted(signal.valid_signals())])
@pytest.mark.parametrize("was_asked", [False, True])
def test_every_signal_has_short_sentences(number: int, was_asked: bool) -> None:
    said = of(
        number, was_asked_to_stop=was_asked, cgroups=(ROSE,), kernel_lines=(POISON * 9,) * 9, has_core=False
    )

    assert sum(map(len, said.sentences)) < 1000
    assert all("\n" not in one and one and not one.endswith(".") for one in said.sentences)
    assert was_asked or said.sentences


@pytest.mark.parametrize("line", [MEMCG, MEMCG_KILLED, GLOBAL, SEGFAULT, XID, POISON])
def test_a_line_of_the_log_is_about_the_process_that_it_names(line: str) -> None:
    assert is_about(line, 17)
    assert not is_about(line, 1)
    assert not is_about(line, 7)
    assert not is_about(line, 170)
    assert is_about(line)


@pytest.mark.parametrize(
    "line",
    [
        "[     17]     0    17   52970    15475    14528      947         0   172032        0             0 python3",
        "[17171717]     0 17171717   52970    15475    14528      947         0   172032        0         0 python3",
        "eth17: link becomes ready",
        "usb 1-17: new device number 17",
        "",
    ],
)
def test_a_line_that_happens_to_have_the_number_is_not_about_it(line: str) -> None:
    assert not is_about(line, 17)
    assert not is_about(line, 17171717)


def test_the_kernels_words_are_put_together_in_either_order() -> None:
    whole = OutOfMemory(limit_of="/job", victims_cgroup="/job", resident_bytes=(58112 + 3788) << 10)
    assert out_of_memory([MEMCG, MEMCG_KILLED], 17) == whole
    assert out_of_memory([MEMCG_KILLED, MEMCG], 17) == whole
    assert out_of_memory([MEMCG, MEMCG_KILLED, SEGFAULT], 18) is None
    old = "Out of memory (oom_kill_allocating_task): Killed process 17 (python3), UID 0, total-vm:1kB, anon-rss:4kB"
    assert out_of_memory([old], 17) == OutOfMemory(is_machine=True, resident_bytes=4096)
