"""The keyword arguments of ``phalanx.launch``: Python values, checked, and turned into ``RunOptions``.

Names and meanings are ``RunOptions``'s, with a few that are shorter to say: ``nnodes``, ``max_restarts``, ``grace``.
No variable of the environment is asked: what a program asks for stands in the program. All mistakes are ``TypeError``
or ``ValueError`` with one sentence.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.launcher.checks import Finding, check_limits, sort_signals, warning_of
from phalanx.launcher.hosting.handover import to_json
from phalanx.launcher.options import RunOptions
from phalanx.launcher.outside_checks import judge
from phalanx.multiprocessing.std import Std
from phalanx.records import changed

__all__ = ["LaunchOptions", "options_of"]


class LaunchOptions(TypedDict, total=False):
    """What ``phalanx.launch`` and ``phalanx.start`` take by name; docs/python.md has a table with defaults and flags.

    Times in seconds, sizes in bytes.

    >>> import phalanx
    >>> small: phalanx.LaunchOptions = {"nproc": 2, "grace": 5}
    >>> phalanx.launch(len, "abc", **small).values
    (3, 3)
    """

    nproc: int | Literal["auto", "cpu", "gpu", "xpu"]
    nnodes: int | str | tuple[int, int]
    max_restarts: int
    restarts: RestartPolicy
    grace: float
    run_id: str | None
    name: str | None
    role: str
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None
    python: str | None
    module: bool
    no_python: bool
    log_dir: str | os.PathLike[str] | None
    redirects: Std | int | str | Mapping[int, Std]
    tee: Std | int | str | Mapping[int, Std]
    local_ranks_filter: Collection[int] | None
    duplicate_stdout_filters: Sequence[str]
    duplicate_stderr_filters: Sequence[str]
    log_line_prefix_template: str | None
    stderr_tail: int
    log_max_size: int | None
    logs_specs: str | None
    stop_signals: Sequence[int | str]
    pass_signals: Sequence[int | str]
    warn_signal: int | str | None
    warn_before_s: float
    restart_grace_s: float | None
    resize_grace_s: float | None
    stop_all: bool
    restart_scope: Literal["group", "worker"]
    exclude_for_s: float
    exit_barrier_s: float | None
    straggler_s: float | None
    watchdog: bool
    rdzv_backend: str
    rdzv_endpoint: str
    rdzv_conf: Mapping[str, Any]
    node_rank: int | None
    local_addr: str | None
    master_addr: str | None
    master_port: int | None
    secret: str | bytes | None
    standalone: bool
    devices: str | Sequence[str | int] | None
    virtual_local_rank: bool
    numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None
    numa_may_fail: bool
    omp_threads: int | Literal["auto"] | None
    error_file: str | os.PathLike[str] | None
    report_file: str | os.PathLike[str] | None
    error_handler: str | None
    prints_report: bool
    event_log_handler: str
    events_file: str | os.PathLike[str] | None
    start_method: Literal["spawn", "fork", "forkserver"]


# Where it is not as with `phalanx run`: a notebook asks which rank a line is from, and the exception says what the
# report would.
_DEFAULTS: dict[str, Any] = {
    "redirects": Std.NONE,
    "tee": Std.ALL,
    "prints_report": False,
    "log_line_prefix_template": "[rank${rank}]: ",
}
_SHORT = {"grace": "grace_s"}
_WORDS = {
    "grace_s": "grace",
    "min_nodes": "nnodes",
    "max_nodes": "nnodes",
    "restarts.max_restarts": "max_restarts",
}


def options_of(given: Mapping[str, Any], *, entrypoint: str, args: tuple[str, ...]) -> RunOptions:
    """The options that these keyword arguments ask for. Raises ``TypeError`` and ``ValueError``.

    ``cwd`` is left to the caller, who starts the process.
    """
    _check_names(given)
    usual: dict[str, Any] = {**RunOptions.__struct_defaults__, **_DEFAULTS}
    fields = dict(usual)
    if given.get("redirects") and "tee" not in given:
        fields["tee"] = Std.NONE  # to files, and then not to the console
    for name, value in given.items():
        if name != "cwd":
            fields.update(_read(name, value))
    if "max_restarts" in given:
        fields["restarts"] = changed(fields["restarts"], max_restarts=given["max_restarts"])
    fields["stop_signals"], fields["pass_signals"], found = sort_signals(
        fields["stop_signals"],
        fields["pass_signals"] if "pass_signals" in given else (),
        is_asked="stop_signals" in given,
        called=_called,
    )
    if not isinstance(fields["nproc"], int):
        fields["nproc"] = _counted(fields["nproc"], fields.get("devices"))
    options = RunOptions(**{**fields, "entrypoint": entrypoint, "args": args})
    _check_values(options, found)
    number, before_s = warning_of(options.warn_signal, options.warn_before_s)
    options = changed(options, warn_signal=number, warn_before_s=before_s)
    asked = {name for name in fields if name in given and fields[name] != usual[name]}
    asked |= {f"restarts.{name}" for name in _asked_of_policy(options.restarts)}
    judge(options, asked=asked, called=_called, is_function=not entrypoint)
    return options


def _called(field: str) -> str:
    return _WORDS.get(field, field)


def _asked_of_policy(policy: RestartPolicy) -> set[str]:
    """What is neither as a job has it anyway, nor as a policy has it."""
    usual = RunOptions.__struct_defaults__["restarts"]
    plain = RestartPolicy()
    return {
        name
        for name in policy.__struct_fields__
        if getattr(policy, name) not in (getattr(usual, name), getattr(plain, name))
    }


def _check_names(given: Mapping[str, Any]) -> None:
    known = LaunchOptions.__annotations__
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1, 0.75)
            meant = f"did you mean {near[0]}?" if near else "see phalanx.LaunchOptions."
            raise TypeError(
                f"launch has no option {name!r}; {meant} A function's own keyword arguments go into kwargs={{…}}"
            )


def _read(name: str, value: Any) -> dict[str, Any]:
    """The fields for one keyword argument."""
    if name in ("max_restarts", "restarts"):
        if name == "max_restarts" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise _wrong(name, value, "a number of restarts, 0 or more")
        if name == "restarts" and not isinstance(value, RestartPolicy):
            raise _wrong(name, value, "RestartPolicy")
        return {} if name == "max_restarts" else {"restarts": value}
    if name == "nnodes":
        least, most = _nodes(value)
        return {"min_nodes": least, "max_nodes": most}
    reader = _READERS.get(name)
    return {_SHORT.get(name, name): value if reader is None else reader(name, value)}


def _nodes(value: Any) -> tuple[int, int]:
    wanted = "a number of nodes, '2:4' or (2, 4)"
    pair = value
    if isinstance(value, str):
        least, _, most = value.partition(":")
        if not (least.isdecimal() and (most or least).isdecimal()):
            raise _wrong("nnodes", value, wanted)
        pair = (int(least), int(most or least))
    elif isinstance(value, int) and not isinstance(value, bool):
        pair = (value, value)
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(type(one) is int for one in pair)):
        raise _wrong("nnodes", value, wanted)
    if not 1 <= pair[0] <= pair[1]:
        raise ValueError(f"nnodes={value!r}: at least 1 node, and the smaller number first")
    return pair


def _counted(word: Any, devices: Collection[str] | None) -> int:
    from phalanx.launcher.hardware.slots import count_slots, read_slots

    if not isinstance(word, str):
        raise _wrong("nproc", word, "a number of workers, 'auto', 'cpu', 'gpu' or 'xpu'")
    try:
        return int(count_slots(read_slots(word), devices=devices))
    except ValueError as reason:
        raise ValueError(f"nproc: {reason}") from None


def _streams(name: str, value: Any) -> Any:
    try:
        if isinstance(value, str):
            return Std.from_str(value)
        if isinstance(value, Mapping):
            return {rank: Std(one) for rank, one in value.items()}
        if isinstance(value, int) and not isinstance(value, bool):
            return Std(value) if 0 <= value <= Std.ALL else Std.from_str(str(value))
    except (ValueError, TypeError) as reason:
        raise ValueError(f"{name}={value!r}: {reason}") from None
    raise _wrong(name, value, "phalanx.multiprocessing.Std, a number from 0 to 3, or one for each local rank")


def _signals(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(name, value, "a list of signals")
    return tuple(dict.fromkeys(_signal(name, one) for one in value))


def _signal(name: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            number = signal.Signals["SIG" + value.upper().removeprefix("SIG")]
        else:
            number = signal.Signals(value)
    except (KeyError, ValueError):
        raise ValueError(f"{name}: this system has no signal {value!r}") from None
    if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
        raise ValueError(f"{name}: no program can take {number.name} over; leave it out")
    return int(number)


def _path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        path = str(os.fsdecode(value))
    except TypeError:
        raise _wrong(name, value, "a path") from None
    if not path:
        raise ValueError(f"{name} is empty; name a path, or leave it out")
    return path


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(name, value, "a list of texts")
    return tuple(value)


def _devices(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    from phalanx.launcher.hardware.devices import read_devices

    listed = value.split(",") if isinstance(value, str) else [str(one) for one in value]
    try:
        return tuple(read_devices(listed))
    except ValueError as reason:
        raise ValueError(f"{name}: {reason}") from None


def _secret(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return os.fsencode(value)
    raise _wrong(name, type(value), "a text or bytes")  # never the secret itself


def _conf(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a dictionary")
    return {str(key): str(one) for key, one in value.items()}


def _ranks(name: str, value: Any) -> set[int] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Collection):
        raise _wrong(name, value, "a list of local ranks")
    return set(value)


_READERS: dict[str, Any] = {
    "redirects": _streams,
    "tee": _streams,
    "stop_signals": _signals,
    "pass_signals": _signals,
    "warn_signal": _signal,
    "log_dir": _path,
    "error_file": _path,
    "report_file": _path,
    "events_file": _path,
    "python": _path,
    "duplicate_stdout_filters": _texts,
    "duplicate_stderr_filters": _texts,
    "devices": _devices,
    "secret": _secret,
    "rdzv_conf": _conf,
    "local_ranks_filter": _ranks,
    "omp_threads": lambda _name, value: 0 if value == "auto" else value,
}


def _check_values(options: RunOptions, found: Iterable[Finding]) -> None:
    for one in (*found, *check_limits(options)):
        if one.is_error:
            raise ValueError(one.text(_called))
        warnings.warn(one.text(_called), stacklevel=4)
    if not options.stop_signals:
        raise ValueError("stop_signals: no signal is left that would stop the job")
    try:
        to_json(options)
    except TypeError as reason:
        field, space, rest = str(reason).removeprefix("RunOptions.").partition(" ")
        raise TypeError(f"{_called(field)}{space}{rest}") from None


def _wrong(name: str, value: Any, wanted: str) -> TypeError:
    return TypeError(f"{name} is to be {wanted}, and is {value!r}, of type {type(value).__name__}")
