from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from phalanx.agent.evidence import postmortem
from phalanx.agent.evidence.explanations import Explanation
from phalanx.agent.evidence.postmortem import FIRST_PID_NAMESPACE, Postmortem
from phalanx.multiprocessing.pidfd import PidfdChild, Remains, has_ended

MIB = 1 << 20
V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {top} /sys/fs/cgroup/memory rw master:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
OOM_LINE = (
    "6,{number},1000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={of},"
    "task_memcg={victim},task=python3,pid={pid},uid=0\n SUBSYSTEM=none\n"
)


class Machine:
    """A recorded file system: what a kernel shows in /proc, /sys and /dev."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postmortem = Postmortem(str(folder))

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def v2(self, own: str, *, top: str = "/") -> None:
        self.write({"/proc/self/mountinfo": V2.format(top=top), "/proc/self/cgroup": f"0::{own}\n"})

    def v1(self, own: str, *, top: str = "/") -> None:
        lines = f"5:cpu,cpuacct:/elsewhere\n4:memory:{own}\n0::/unified\n"
        self.write({"/proc/self/mountinfo": V1.format(top=top), "/proc/self/cgroup": lines})

    def v2_events(self, folder: str, *, oom: int, kills: int, local: bool = True, limit: str = "max") -> None:
        below = f"/sys/fs/cgroup{folder}"
        events = f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\noom_group_kill 0\n"
        self.write({f"{below}/memory.events.local" if local else f"{below}/memory.events": events})
        self.write({f"{below}/memory.max": f"{limit}\n"})

    def v1_count(self, folder: str, *, kills: int, limit: int = 9223372036854771712) -> None:
        below = f"/sys/fs/cgroup/memory{folder}"
        self.write({f"{below}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"})
        self.write({f"{below}/memory.limit_in_bytes": f"{limit}\n"})

    def log(self, text: str, *, namespace: str = FIRST_PID_NAMESPACE) -> None:
        link = self.folder / "proc/self/ns/pid"
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(namespace)
        path = self.folder / "dev/kmsg"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def killed(
        self,
        number: int = signal.SIGKILL,
        remains: Remains | None = None,
        *,
        pid: int = 17,
        local_rank: int = 0,
    ) -> Explanation:
        return self.postmortem.explain(
            pid, -number, was_asked_to_stop=False, remains=remains, local_rank=local_rank
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_v2_a_kill_in_the_own_cgroup_with_its_limit(machine: Machine) -> None:
    machine.v2("/user.slice/job.scope")
    machine.v2_events("/user.slice", oom=0, kills=2)
    machine.v2_events("/user.slice/job.scope", oom=1, kills=1, limit=str(64 * MIB))
    machine.postmortem.begin()
    machine.v2_events("/user.slice/job.scope", oom=2, kills=2, limit=str(64 * MIB))

    assert (
        machine.killed()
        .sentences[0]
        .startswith(
            "probably the kernel killed it because its cgroup was out of memory (limit 64 MiB): it has killed one"
        )
    )


@pytest.mark.parametrize("local", [True, False], ids=["counts of one", "sums"])
def test_v2_the_limit_of_an_ancestor_is_told_from_tighter_ones_that_held(
    machine: Machine, local: bool
) -> None:
    def happened(times: int) -> None:
        machine.v2_events("/pod", oom=times, kills=0 if local else times, local=local, limit=str(512 * MIB))
        machine.v2_events("/pod/main", oom=0, kills=times, local=local, limit=str(256 * MIB))
        machine.v2_events("/pod/main/job", oom=0, kills=times, local=local)

    machine.v2("/pod/main/job")
    happened(0)
    machine.postmortem.begin()
    happened(1)

    assert (
        "because the cgroup /pod around it was out of memory (limit 512 MiB):"
        in machine.killed().sentences[0]
    )


def test_v2_a_neighbours_death_counts_in_the_cgroup_around_both_and_explains_nothing(
    machine: Machine,
) -> None:
    machine.v2("/pod/job")
    machine.v2_events("/pod", oom=0, kills=0, local=False, limit=str(MIB))
    machine.v2_events("/pod/job", oom=0, kills=0, local=False)
    machine.postmortem.begin()
    machine.v2_events("/pod", oom=1, kills=1, local=False, limit=str(MIB))

    assert (
        machine.killed().sentences[0].startswith("this launcher did not kill it; its cgroups count no kill")
    )


PROBABLY, STRANGER = "probably the kernel killed it", "this launcher did not kill it"


def test_of_two_that_died_together_the_second_is_explained_when_the_first_is_back(machine: Machine) -> None:
    machine.v2("/job")
    machine.v2_events("/job", oom=0, kills=0)
    machine.postmortem.begin()
    machine.v2_events("/job", oom=2, kills=2)
    assert machine.killed(local_rank=1).sentences[0].startswith(PROBABLY)
    machine.postmortem.begin_single(1)
    assert machine.killed(local_rank=2).sentences[0].startswith(PROBABLY)
    machine.postmortem.begin_single(2)

    for one in (1, 2):
        assert machine.killed(local_rank=one).sentences[0].startswith(STRANGER), "nothing since they are back"
    machine.v2_events("/job", oom=3, kills=3)
    assert machine.killed(local_rank=1).sentences[0].startswith(PROBABLY)


def test_what_was_long_before_a_death_explains_it_no_more_than_what_was_before_the_worker(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.v2("/job")
    machine.v2_events("/job", oom=0, kills=0)
    machine.postmortem.begin()
    machine.v2_events("/job", oom=1, kills=1)
    machine.postmortem.begin_single(1)
    assert machine.killed(local_rank=2).sentences[0].startswith(PROBABLY), "it may have been dying since then"
    monkeypatch.setattr(postmortem, "DYING_S", 0.0)  # from now on that was long ago
    assert machine.killed(local_rank=2).sentences[0].startswith(STRANGER)


def test_the_kernels_words_on_one_worker_outlive_the_restart_of_another(machine: Machine) -> None:
    machine.v2("/job")
    machine.v2_events("/job", oom=0, kills=0)
    machine.log("")
    machine.postmortem.begin()
    for pid in (17, 18):
        machine.log(OOM_LINE.format(number=pid, of="/job", victim="/job", pid=pid))
    machine.postmortem.begin_single(1)
    assert machine.killed(pid=18, local_rank=2).certain == "out of memory"
    assert machine.killed(pid=17, local_rank=1).certain == "", (
        "a number that was given anew is another process"
    )
    machine.postmortem.close()


def test_restarts_without_end_keep_few_baselines(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.v2("/job")
    monkeypatch.setattr(postmortem, "DYING_S", 0.0)
    machine.postmortem.begin()
    for number in range(100):
        machine.postmortem.begin_single(number % 3)
    assert len(machine.postmortem._baselines) == 2


@pytest.mark.parametrize("ending", ["", " (deleted)"])
def test_v2_a_worker_that_was_moved_is_found_where_it_died(machine: Machine, ending: str) -> None:
    machine.v2("/pod/agent")
    machine.v2_events("/pod/agent", oom=0, kills=0)
    machine.postmortem.begin()
    machine.v2_events("/pod/worker", oom=1, kills=1, limit=str(32 * MIB))

    said = machine.killed(remains=Remains(peak_bytes=1, cgroups=f"0::/pod/worker{ending}\n"))

    assert "its cgroup was out of memory (limit 32 MiB)" in said.sentences[0]


def test_v2_a_container_sees_its_own_cgroup_as_the_top(machine: Machine) -> None:
    machine.v2("/")
    machine.v2_events("", oom=0, kills=0, limit=str(100 * MIB))
    machine.postmortem.begin()
    machine.v2_events("", oom=1, kills=1, limit=str(100 * MIB))

    assert "its cgroup was out of memory (limit 100 MiB)" in machine.killed().sentences[0]


def test_v1_the_memory_hierarchy_is_found_among_the_others(machine: Machine) -> None:
    machine.v1("/slurm/job_5/step_0")
    machine.v1_count("/slurm/job_5", kills=0, limit=400 * MIB)
    machine.v1_count("/slurm/job_5/step_0", kills=7)
    machine.postmortem.begin()
    machine.v1_count("/slurm/job_5/step_0", kills=9)

    # The kernel moves the dead of v1 to the root: what their /proc says is not where they died.
    said = machine.killed(remains=Remains(peak_bytes=1, cgroups="4:memory:/\n0::/\n"))

    assert said.sentences[0] == (
        "probably the kernel killed it because the cgroup /slurm/job_5 around it was out of memory (limit 400 MiB): "
        "it has killed 2 processes of this cgroup for that, which another may have been"
    )


@pytest.mark.parametrize("own", ["/docker/4711", "/docker/4711/job"])
def test_v1_a_container_is_told_paths_as_from_outside(machine: Machine, own: str) -> None:
    below = own.removeprefix("/docker/4711")
    machine.v1(own, top="/docker/4711")
    machine.v1_count(below, kills=0, limit=80 * MIB)
    machine.postmortem.begin()
    machine.v1_count(below, kills=1, limit=80 * MIB)

    assert "its cgroup was out of memory (limit 80 MiB)" in machine.killed().sentences[0]


def test_the_kernels_log_names_the_victim_its_cgroup_and_the_limit(machine: Machine) -> None:
    machine.v1("/job")
    machine.v1_count("/job", kills=0)
    machine.v1_count("/job/rank0", kills=1, limit=48 * MIB)  # where the worker went by itself
    machine.log(OOM_LINE.format(number=1, pid=17, of="/old", victim="/old"))
    machine.postmortem.begin()
    machine.log(
        "4,2,2000,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    )
    machine.log(OOM_LINE.format(number=3, pid=16, of="/other", victim="/other"))
    machine.log(OOM_LINE.format(number=4, pid=17, of="/job/rank0", victim="/job/rank0"))

    said = machine.killed()

    assert said.certain == "out of memory (limit 48 MiB)"
    machine.postmortem.close()


def test_the_limit_of_a_cgroup_that_is_not_on_the_way_up_is_found_too(machine: Machine) -> None:
    machine.v1("/job")
    machine.v1_count("/task", kills=1)
    machine.v1_count("/pod", kills=0, limit=5 * MIB)
    machine.log("")
    machine.postmortem.begin()
    machine.log(OOM_LINE.format(number=4, pid=17, of="/pod", victim="/task"))

    assert machine.killed().certain == "out of memory (limit 5 MiB)"
    machine.postmortem.close()


def test_what_the_log_said_of_a_pid_in_an_earlier_round_is_forgotten(machine: Machine) -> None:
    machine.log("")
    machine.postmortem.begin()
    machine.log(OOM_LINE.format(number=1, pid=17, of="/job", victim="/job"))
    assert machine.killed().certain
    assert machine.killed().certain, "what was read for one worker is there for the next"

    machine.postmortem.begin()

    assert not machine.killed().certain
    machine.postmortem.close()


def test_in_a_container_the_numbers_in_the_log_are_somebody_elses(machine: Machine) -> None:
    machine.log("", namespace="pid:[4026532000]")
    machine.postmortem.begin()
    machine.log(OOM_LINE.format(number=1, pid=17, of="/job", victim="/job"))

    assert "neither its cgroup's counters nor the kernel's log can be read" in machine.killed().sentences[0]


@pytest.mark.parametrize("number", [0, *sorted(signal.valid_signals())])
def test_a_machine_of_which_nothing_can_be_read_explains_what_it_can(machine: Machine, number: int) -> None:
    machine.postmortem.begin()

    assert machine.killed(number).sentences or number == 0
    machine.postmortem.close()


def test_files_full_of_nonsense_are_unknown(machine: Machine) -> None:
    nonsense = "\udcff\n:::\n - \n1 2 3 4 5 6 - cgroup2\n\0"
    names = ("/proc/self/mountinfo", "/proc/self/cgroup", "/proc/sys/kernel/core_pattern")
    for name in names:
        path = machine.folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(nonsense))
    machine.log("")
    machine.postmortem.begin()
    machine.log("no semicolon\n;\n6,1,1,-;a[17]: \x1b[31m\n")

    said = machine.killed(signal.SIGSEGV, Remains(1, False, nonsense, "nonsense"))

    assert any("the kernel says: a[17]" in one for one in said.sentences)
    machine.postmortem.close()


def test_counters_full_of_nonsense_are_unknown(machine: Machine) -> None:
    machine.v2("/job")
    machine.write(
        {"/sys/fs/cgroup/job/memory.events": "oom_kill many\noom -1\n", "/sys/fs/cgroup/job/memory.max": "x"}
    )
    machine.postmortem.begin()

    assert "neither its cgroup's counters nor the kernel's log" in machine.killed().sentences[0]


def test_a_worker_smaller_than_this_process_has_no_peak_of_its_own(machine: Machine) -> None:
    machine.postmortem.begin()

    small, large = Remains(peak_bytes=4096), Remains(peak_bytes=1 << 50)
    assert "the worker had" not in machine.killed(remains=small).sentences[0]
    assert "the worker had up to 1048576 GiB" in machine.killed(remains=large).sentences[0]


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="the kernel's log is not ours to read"
)
def test_the_real_log_is_read_from_the_start_of_the_round_and_never_waited_for() -> None:
    if os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
        pytest.skip("in a container the log is not read")
    child = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"])
    child.returncode = 0
    watch = PidfdChild(child.pid)
    assert has_ended(watch.fileno(), 30)
    code = watch.poll()
    watch.close()
    assert code == -signal.SIGSEGV
    postmortem = Postmortem()
    Path("/dev/kmsg").write_text(f"<7>phalanx-test[{child.pid}]: before the round\n")
    postmortem.begin()
    quiet = postmortem.explain(child.pid, code, was_asked_to_stop=False, remains=watch.remains)
    Path("/dev/kmsg").write_text(f"<7>phalanx-test[{child.pid}]: segfault at 0\n")
    told = postmortem.explain(child.pid, code, was_asked_to_stop=False, remains=watch.remains)
    postmortem.close()
    postmortem.close()

    assert not any("kernel says" in one for one in quiet.sentences)
    assert f"the kernel says: phalanx-test[{child.pid}]: segfault at 0" in told.sentences
