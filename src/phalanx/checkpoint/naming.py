"""The names in a folder of checkpoints: which are steps, which are none yet or no more, and how each is made. Pure."""

from __future__ import annotations

import re
from hashlib import sha256

__all__ = [
    "LATEST",
    "LATEST_DRAFT",
    "MANIFEST",
    "STEP_MAX",
    "aside_name",
    "deleting_name",
    "is_aside",
    "is_deleting",
    "is_earlier",
    "is_of_round",
    "is_own",
    "part_name",
    "replaced_name",
    "replaced_step",
    "shared_name",
    "staging_name",
    "staging_token",
    "step_name",
    "step_number",
    "token_of",
]

LATEST = "latest"
LATEST_DRAFT = ".latest.partial"
MANIFEST = "manifest.json"
STEP_MAX = 2**63 - 1  # what other programs, and JSON readers with 64-bit numbers, can hold

_OWN = re.compile(r"step-([0-9]{9,19})")
# The number at the end of the name: step-100, step_100, checkpoint-100, global_step100, epoch=3-step=100, 100.
_FOREIGN = re.compile(r"(?:[^.].*?)??([0-9]{1,19})")
_ASIDE = re.compile(r"step-[0-9]{9,19}\.(?:bad|superseded)(?:-[0-9]+)?")
_STAGING = re.compile(r"\.step-([0-9]{9,19})\.(.+)\.partial")
_REPLACED = re.compile(r"\.step-([0-9]{9,19})\.replaced")
_DOOMED = re.compile(r"\.step-[0-9]{9,19}\..+\.deleting")


def step_name(step: int) -> str:
    """The name of a published step's folder: nine digits sort as they count; more are possible.

    >>> step_name(1000)
    'step-000001000'
    """
    return f"step-{step:09d}"


def step_number(name: str) -> int | None:
    """The step that a folder of this name has, ours or another program's: the number at its end.

    >>> [step_number(name) for name in ("step_100", "global_step20", "epoch=3-step=70", "7", "latest")]
    [100, 20, 70, 7, None]
    """
    found = _FOREIGN.fullmatch(name)
    if found is None or is_aside(name):
        return None
    number = int(found[1])
    return number if number <= STEP_MAX else None


def is_own(name: str) -> bool:
    """Whether a published step of ours has this name: only such folders are ever removed or set aside.

    >>> is_own("step-000001000"), is_own("checkpoint-1000")
    (True, False)
    """
    found = _OWN.fullmatch(name)
    return found is not None and step_name(int(found[1])) == name and int(found[1]) <= STEP_MAX


def part_name(rank: int) -> str:
    """The name of a rank's folder within a step.

    >>> part_name(3)
    'rank-00003'
    """
    return f"rank-{rank:05d}"


def token_of(run_id: str, round_number: int) -> str:
    """Whose a staging folder is, as a part of its name. A run id that is long, or has signs that a file name should not
    have, is shortened; a hash tells it from others that look alike then.

    >>> token_of("job-7", 2), token_of("team/job 7", 2)
    ('job-7.r2', 'team_job_7-8992d946.r2')
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:64]
    if name != run_id:
        name += "-" + sha256(run_id.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name or 'none'}.r{round_number}"


def staging_name(step: int, token: str) -> str:
    """The name of the folder in which a step is written.

    >>> staging_name(1000, token_of("job", 2))
    '.step-000001000.job.r2.partial'
    """
    return f".{step_name(step)}.{token}.partial"


def shared_name(step: int, run_id: str, round_number: int, attempt: int) -> str:
    """The name of the staging folder that all ranks open in the save of this number within their round.

    >>> shared_name(1000, "job", 2, 11)
    '.step-000001000.job.r2.b.partial'
    """
    return staging_name(step, f"{token_of(run_id, round_number)}.{attempt:x}")


def staging_token(name: str) -> str | None:
    """The token within the name of a staging folder; None for any other name.

    >>> staging_token(".step-000001000.job.r2.partial")
    'job.r2'
    """
    found = _STAGING.fullmatch(name)
    return found[2] if found else None


def is_earlier(token: str, run_id: str, round_number: int) -> bool:
    """Whether a staging folder with this token is that of an earlier round of this job.

    >>> is_earlier("job.r2", "job", 3), is_earlier("job.r2.0f3a", "job", 3), is_earlier("job.r3", "job", 3)
    (True, True, False)
    >>> is_earlier("none.r2", "none", 3)
    False
    """
    found = _round_of(token, run_id)
    return found is not None and found < round_number


def is_of_round(token: str, run_id: str, round_number: int) -> bool:
    """Whether a staging folder with this token is that of this very round of this job.

    >>> is_of_round("job.r2.0f3a", "job", 2), is_of_round("job.r2", "job", 3), is_of_round("other.r2", "job", 2)
    (True, False, False)
    """
    return _round_of(token, run_id) == round_number


def _round_of(token: str, run_id: str) -> int | None:
    """The round of a token, if it is one of this job's; jobs without a run id cannot be told from each other.

    torchrun gives all of those the id "none".
    """
    found = re.fullmatch(r"(.+?)\.r([0-9]+)(?:\.[0-9a-f]+)?", token)
    if found is None or run_id in ("", "none") or found[1] != token_of(run_id, 0).removesuffix(".r0"):
        return None
    return int(found[2])


def replaced_name(step: int) -> str:
    """What an existing step is called while a new one takes its place.

    >>> replaced_name(1000)
    '.step-000001000.replaced'
    """
    return f".{step_name(step)}.replaced"


def replaced_step(name: str) -> int | None:
    """The step that is being replaced under this name.

    >>> replaced_step(".step-000001000.replaced")
    1000
    """
    found = _REPLACED.fullmatch(name)
    return int(found[1]) if found and replaced_name(int(found[1])) == name else None


def deleting_name(name: str, token: str) -> str:
    """What a folder is called while it is deleted.

    >>> deleting_name("step-000001000", "0f3a")
    '.step-000001000.0f3a.deleting'
    """
    found = re.search(r"step-[0-9]{9,19}", name)
    return f".{found[0] if found else step_name(0)}.{token}.deleting"


def is_deleting(name: str) -> bool:
    """Whether this is a folder that somebody began to delete.

    >>> is_deleting(".step-000001000.0f3a.deleting")
    True
    """
    return _DOOMED.fullmatch(name) is not None


def aside_name(step: int, why: str, number: int) -> str:
    """What a step is called once it was set aside; ``number`` counts those of the same step from 1.

    ``why``: ``bad``, or ``superseded`` if training has gone on from an older one.

    >>> aside_name(1000, "bad", 1), aside_name(1000, "bad", 2), aside_name(1000, "superseded", 1)
    ('step-000001000.bad', 'step-000001000.bad-2', 'step-000001000.superseded')
    """
    return f"{step_name(step)}.{why}" + (f"-{number}" if number > 1 else "")


def is_aside(name: str) -> bool:
    """Whether this is a step that was set aside.

    >>> is_aside("step-000001000.bad-2")
    True
    """
    return _ASIDE.fullmatch(name) is not None
