"""Case 13: after the script's name everything belongs to the script, in whichever way the launcher is started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.system.launch import WORKER_SIDE, Launch, Launcher, Script

TELL_ARGUMENTS = """
    import sys
    from telling import tell

    tell("arguments", argv=sys.argv)
"""

TRAPS: dict[str, list[str]] = {
    "an abbreviation of a flag of ours with a value": ["--r=16"],
    "a prefix of several flags of ours": ["--log", "x"],
    "a prefix of --no-python": ["--no", "y"],
    "a prefix of --local-addr": ["--local", "3"],
    "a flag of ours": ["--nnodes=9"],
    "help": ["-h"],
    "version": ["--version"],
    "a double dash": ["--", "-t"],
    "short flags with values": ["-r3", "-mmod", "-t", "9"],
    "empty and blank words": ["", " ", "a b"],
    "not ASCII": ["größe=日本"],
    "the rank macro's look-alikes": ["$local_rank", "%{local_rank}", "$$HOME", "${HOME}"],
}
TRAPS["all together"] = [word for words in TRAPS.values() for word in words]


@pytest.mark.parametrize("arguments", TRAPS.values(), ids=TRAPS)
def test_arguments_of_the_script_arrive_untouched(
    launch: Launch, script: Script, arguments: list[str]
) -> None:
    train = script(TELL_ARGUMENTS)

    job = launch("--standalone", train, *arguments)

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), *arguments]


def _python(*words: str) -> Launcher:
    return Launcher("phalanx", (sys.executable, *words))


def _with_torchs_names(*command: str) -> Launcher:
    return Launcher("phalanx", ("env", "PHALANX_COMPAT=1", *command))


# Each with the flags that it needs in front of the script.
WAYS: dict[str, tuple[Launcher, tuple[str, ...]]] = {
    "the command phalanx run": (
        Launcher("phalanx", (str(Path(sys.executable).with_name("phalanx")), "run")),
        (),
    ),
    "python -m phalanx run": (_python("-m", "phalanx", "run"), ()),
    "python -m phalanx.run": (_python("-m", "phalanx.run"), ()),
    "python -m phalanx.launch": (_python("-m", "phalanx.launch"), ("--use-env",)),
    "python -m torch.distributed.run": (
        _with_torchs_names(sys.executable, "-m", "torch.distributed.run"),
        (),
    ),
    "the command torchrun": (_with_torchs_names(str(Path(sys.executable).with_name("torchrun"))), ()),
    "a program that calls phalanx.run.main": (_python("-c", "from phalanx.run import main; main()"), ()),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.torch] if "torch" in way else []) for way in WAYS]
)
def test_every_way_to_start_leaves_the_arguments_alone(launch: Launch, script: Script, way: str) -> None:
    train, (launcher, flags) = script(TELL_ARGUMENTS), WAYS[way]

    job = launch("--standalone", *flags, train, *TRAPS["all together"], launcher=launcher)

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), *TRAPS["all together"]]


@pytest.mark.parametrize("way", ["python -m phalanx.run", "python -m phalanx.launch"])
@pytest.mark.parametrize("flag", ["-m", "--no-python"])
def test_so_do_the_ways_with_other_programs(launch: Launch, script: Script, way: str, flag: str) -> None:
    train, (launcher, flags) = script(TELL_ARGUMENTS, name="trainer.py"), WAYS[way]
    env = {"PYTHONPATH": os.pathsep.join([str(train.parent), str(WORKER_SIDE)])}
    program = ["trainer"] if flag == "-m" else [sys.executable, str(train)]

    job = launch("--standalone", *flags, flag, *program, *TRAPS["all together"], env=env, launcher=launcher)

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), *TRAPS["all together"]]


def test_a_configuration_file_leaves_the_arguments_alone(launch: Launch, script: Script) -> None:
    """They may stand behind the script on the command line, or in the file behind its path."""
    train, arguments = script(TELL_ARGUMENTS), TRAPS["all together"]
    words = train.with_name("words.yaml")
    words.write_text("elastic: {standalone: true}\n")
    named = train.with_name("named.yaml")
    # JSON is YAML, and writes every text so that YAML reads that very text.
    program = {
        "path": str(train),
        "args": [text.replace("$$", "$$$$").replace("${", "$${") for text in arguments],
    }
    named.write_text(json.dumps({"elastic": {"standalone": True}, "script": program}))

    for job in (launch("--config", words, train, *arguments), launch("--config", named)):
        assert job.wait() == 0, job.stderr
        assert job.told("arguments")[0]["argv"] == [str(train), *arguments]


def test_arguments_of_a_module_arrive_untouched(launch: Launch, script: Script) -> None:
    train = script(TELL_ARGUMENTS, name="trainer.py")
    env = {"PYTHONPATH": os.pathsep.join([str(train.parent), str(WORKER_SIDE)])}

    job = launch("--standalone", "-m", "trainer", *TRAPS["all together"], env=env)

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), *TRAPS["all together"]]


def test_arguments_of_a_program_that_is_not_python_arrive_untouched(launch: Launch, script: Script) -> None:
    train = script(TELL_ARGUMENTS)

    job = launch("--standalone", "--no-python", sys.executable, train, *TRAPS["all together"])

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), *TRAPS["all together"]]


def test_a_double_dash_before_the_script_is_the_launchers(launch: Launch, script: Script) -> None:
    train = script(TELL_ARGUMENTS)

    job = launch("--standalone", "--", train, "--", "-t")

    assert job.wait() == 0, job.stderr
    assert job.told("arguments")[0]["argv"] == [str(train), "--", "-t"]


def test_the_local_rank_macro_is_replaced(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(TELL_ARGUMENTS), "--shard=${local_rank}")

    assert job.wait() == 0
    told = job.told("arguments", 2)
    assert {event.rank: event["argv"][1] for event in told} == {0: "--shard=0", 1: "--shard=1"}


@pytest.mark.parametrize(
    "spelling",
    [
        ("--nproc-per-node", "2"),
        ("--nproc-per-node=2",),
        ("--nproc_per_node", "2"),
        ("--nproc_per_node=2",),
    ],
    ids=" ".join,
)
def test_flags_before_the_script_have_both_spellings(
    launch: Launch, script: Script, spelling: tuple[str, ...]
) -> None:
    job = launch("--standalone", *spelling, script(TELL_ARGUMENTS))

    assert job.wait() == 0
    assert len(job.told("arguments", 2)) == 2


def test_a_pet_variable_is_the_default_and_a_flag_wins(launch: Launch, script: Script) -> None:
    train = script(TELL_ARGUMENTS)

    by_variable = launch("--standalone", train, env={"PET_NPROC_PER_NODE": "3"})
    assert by_variable.wait() == 0
    assert len(by_variable.told("arguments", 3)) == 3

    by_flag = launch("--standalone", "--nproc-per-node", 1, train, env={"PET_NPROC_PER_NODE": "3"})
    assert by_flag.wait() == 0
    assert len(by_flag.told("arguments")) == 1
