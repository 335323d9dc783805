"""Rows about the size of the job, the program, and what its workers are told."""

from __future__ import annotations

from phalanx.cli import convert
from phalanx.cli.options.option import Option, switch
from phalanx.launcher.choices import CHOICES
from phalanx.launcher.hardware import slots

__all__ = ["ENVIRONMENT", "PROGRAM", "ROWS", "SIZE"]

SIZE = "size of the job"
PROGRAM = "the program"
ENVIRONMENT = "what workers are told"

ROWS: tuple[Option, ...] = (
    Option(
        name="nnodes",
        field="min_nodes",
        metavar="N|MIN:MAX",
        read=convert.node_range,
        default="1:1",
        group=SIZE,
        help="number of nodes, or the range in which the job may run",
    ),
    Option(
        name="nproc-per-node",
        field="nproc",
        metavar="N|auto|cpu|gpu|xpu",
        read=slots.read_slots,
        default="1",
        group=SIZE,
        help="workers on this node; cpu: one for each CPU that this process may use, gpu: one for each visible GPU "
        "of NVIDIA or AMD, xpu: of Intel, auto: gpu or xpu if there is one, else cpu",
    ),
    switch("standalone", SIZE, "one node that meets nobody: no endpoint, no id, no open port"),
    Option(
        name="node-rank",
        metavar="N",
        read=convert.count,
        group=SIZE,
        help="rank of this node where ranks are fixed by hand (static; without it 0); elsewhere a hint for the order "
        "of nodes",
    ),
    switch("module", PROGRAM, "run the program as a module, like python -m", short="m", section=""),
    switch("no-python", PROGRAM, "the program is a command of its own, not a Python script", section=""),
    switch(
        "run-path", PROGRAM, "run the script by its path as __main__; here every script is run so", section=""
    ),
    Option(
        name="python",
        metavar="PATH",
        also=("PYTHON_EXEC",),
        torchrun=False,
        group=PROGRAM,
        help="interpreter of scripts and modules; without it the one that runs phalanx",
    ),
    Option(
        name="debug-rank",
        metavar="N",
        read=convert.count,
        torchrun=False,
        group=PROGRAM,
        help="the worker with this RANK has the terminal, for breakpoint(): Ctrl-C reaches it alone, output of the "
        "others goes to log files, and time limits on slow workers are paused",
    ),
    Option(
        name="start-method",
        metavar="METHOD",
        read=convert.Choice(*CHOICES["start_method"]),
        default="spawn",
        group=PROGRAM,
        help="how worker functions are started: spawn, fork or forkserver; of no effect on scripts and commands",
    ),
    Option(
        name="role",
        metavar="NAME",
        default="default",
        group=ENVIRONMENT,
        help="role of the workers, shown in front of their lines",
    ),
    Option(
        name="master-addr",
        metavar="ADDRESS",
        group=ENVIRONMENT,
        help="MASTER_ADDR of the workers, instead of one that is found",
    ),
    Option(
        name="master-port",
        metavar="PORT",
        read=convert.port,
        group=ENVIRONMENT,
        help="MASTER_PORT of the workers, instead of one that is free",
    ),
    Option(
        name="devices",
        metavar="DEVICES",
        read=convert.devices,
        torchrun=False,
        group=ENVIRONMENT,
        help="devices of this node that the job may use, by index or id as in CUDA_VISIBLE_DEVICES, such as 0,2; they "
        "are what workers see, and what gpu counts",
    ),
    switch(
        "virtual-local-rank",
        ENVIRONMENT,
        "each worker sees its own device alone, and LOCAL_RANK is 0 in all of them",
    ),
    Option(
        name="omp-threads",
        metavar="N|auto",
        read=convert.threads,
        torchrun=False,
        group=ENVIRONMENT,
        help="OMP_NUM_THREADS of each worker; auto: its share of the CPUs that this process may use; without it as it "
        "is set, or 1 if there are several workers",
    ),
    Option(
        name="numa-binding",
        metavar="KIND",
        read=convert.Choice(*CHOICES["numa_binding"]),
        group=ENVIRONMENT,
        has_variable=False,
        help="bind each worker to CPUs near its device: those of its NUMA node or socket, exclusive cores of the "
        "node, or a core-complex that shares a cache; without devices workers are dealt over the nodes",
    ),
)
