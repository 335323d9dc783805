"""From each option's text to the fields of ``RunOptions``, one function for each theme.

What can be known to be wrong is said here, before anything is started. A theme takes what was asked and returns the
fields that it is about; an option that is passed on as it was read needs no theme, only its name in ``_AS_GIVEN``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import Collected, Unread, UsageError, warn
from phalanx.cli.options import OPTIONS, Option
from phalanx.cli.sources import Asked, Text
from phalanx.launcher.choices import PASS_SIGNALS, STOP_SIGNALS

if TYPE_CHECKING:
    from phalanx.agent.restarts.policy import RestartPolicy

__all__ = ["NEVER_IDLE", "SECRET", "Values", "check_meeting", "check_script", "fields_of", "policy_of"]

SECRET = "PHALANX_SECRET"  # never a flag: everybody on the machine can read those

# Options whose value is the field of the same name. The fields that have another name, or more than one option, are
# made by the themes below.
_AS_GIVEN = (
    "duplicate_stderr_filters",
    "duplicate_stdout_filters",
    "error_file",
    "error_handler",
    "event_log_handler",
    "events_file",
    "report_file",
    "local_addr",
    "local_ranks_filter",
    "log_dir",
    "log_line_prefix_template",
    "log_max_size",
    "logs_specs",
    "master_addr",
    "master_port",
    "node_rank",
    "numa_binding",
    "rdzv_backend",
    "rdzv_conf",
    "rdzv_endpoint",
    "redirects",
    "restart_scope",
    "role",
    "standalone",
    "start_method",
    "stderr_tail",
    "stop_all",
    "tee",
    "watchdog",
)


# Options that have an effect in any company; alone they do not need the table of those that may have none.
NEVER_IDLE = frozenset(
    {
        "config",
        "dry_run",
        "log_dir",
        "max_restarts",
        "module",
        "nnodes",
        "no_python",
        "nproc_per_node",
        "role",
    }
)


class Values:
    """The value of each option by its ``dest``, and how messages name the place that it came from."""

    def __init__(self, asked: Asked) -> None:
        self.program = asked.program
        self.env = {name: found.text or "" for name, found in asked.env.items()}
        self.environ = asked.environ
        self.given = frozenset(dest for dest, found in asked.texts.items() if found.kind != "default")
        self.origins = {dest: found.origin for dest, found in asked.texts.items()}
        self.mistakes = Collected(asked.mistakes)
        """All that has been found until now."""
        self._unread = set(asked.unread)
        self._values: dict[str, Any] = {}
        for one in OPTIONS:
            if one.dest not in self._unread:
                self.mistakes.of(self._read, one, asked.texts[one.dest])

    def _read(self, option: Option, found: Text) -> None:
        self._unread.add(option.dest)
        self._values[option.dest] = _read(option, found)
        self._unread.discard(option.dest)

    def __getitem__(self, dest: str) -> Any:
        """Return the value; raises ``Unread`` when there is a mistake in it."""
        if dest in self._unread:
            raise Unread
        return self._values[dest]

    def known(self, dests: Iterable[str]) -> dict[str, Any]:
        """Return the values of these options that could be read."""
        return {dest: self._values[dest] for dest in dests if dest not in self._unread}


def fields_of(asked: Asked, *, makes_folder: bool = True) -> dict[str, Any]:
    """Return the fields of ``phalanx.launcher.RunOptions``. Raises ``UsageError`` with all mistakes; warns on stderr.

    ``makes_folder=False`` leaves the log folder unmade, for who wants to know and not to start.
    """
    values = Values(asked)
    fields = values.known(_AS_GIVEN)
    for theme in _THEMES:
        fields.update(values.mistakes.of(theme, values) or {})
    if values.mistakes:
        if not values.given <= NEVER_IDLE - {"nnodes"}:
            from phalanx.cli.further import check_further

            check_further(values, fields)
        values.mistakes.raise_if_any()
    warnings: list[str] = []
    if not values.given <= NEVER_IDLE or (fields["module"] and fields["no_python"]):
        from phalanx.cli.idle import idle_options

        warnings = list(idle_options(values, fields))
    check_meeting(fields, values.origins)
    for sentence in warnings:
        warn(sentence)
    if any(name.startswith("PET_") for name in values.environ):
        from phalanx.cli.slips import slips

        for sentence in slips(values.environ):
            warn(sentence)
    if values["numa_binding"] is not None:
        from phalanx.cli.worker_values import check_binding

        check_binding(fields, values.origins["numa_binding"])
    if makes_folder:
        _check_log_dir(values["log_dir"], values.origins["log_dir"])
    return fields


def _read(option: Option, found: Text) -> Any:
    if found.text is None:
        return None
    if found.kind == "default":
        return option.read(found.text)
    try:
        value = option.read(found.text)
    except ValueError as reason:
        raise UsageError(f"{found.origin}: {reason}") from None
    if option.later is not None and value is not False:
        raise UsageError(f"{found.origin}: {option.later}")
    return value


def _program(values: Values) -> dict[str, Any]:
    """Return what to run; a script must exist, a module or a command is looked up when it is started."""
    program = values.program
    if program is None:
        if values.mistakes:  # in the place where it was to be named, perhaps
            raise Unread
        raise UsageError(
            "no program was named; write phalanx run [flags] SCRIPT [the script's own arguments]"
        )
    # torchrun's --run-path wins over the other two. It runs a script by path as __main__, as we run every script.
    module, no_python = (values[dest] and not values["run_path"] for dest in ("module", "no_python"))
    if not (module or no_python):
        try:
            check_script(program.name)
        except ValueError as reason:
            raise UsageError(str(reason)) from None
    more = {"env": values.env} if values.env else {}
    return {
        **more,
        "entrypoint": program.name,
        "args": program.arguments,
        "module": module,
        "no_python": no_python,
    }


def check_script(raw: str) -> str:
    """Return the path of a script that is there and can be read, or raise ``ValueError`` with a sentence."""
    if not os.path.exists(raw):
        raise ValueError(
            f"there is no script {raw!r}{_place(raw)}; -m runs a module, --no-python any other program"
        )
    if os.path.isdir(raw) and not os.path.exists(os.path.join(raw, "__main__.py")):
        raise ValueError(f"{raw!r} is a folder without a __main__.py, so Python cannot run it")
    if not os.access(raw, os.R_OK):
        raise ValueError(f"the script {raw!r} cannot be read; check its permissions")
    return raw


def _place(path: str) -> str:
    if os.path.isabs(path):
        return ""
    try:
        return f" in {os.getcwd()}"
    except FileNotFoundError:
        return ", and the current folder has been deleted"


def _worker_fields(values: Values) -> dict[str, Any]:
    """Return how many workers there are here, and what they find: devices, interpreter, terminal."""
    is_plain = isinstance(values["nproc_per_node"], int) and not values.given.intersection(_AROUND_WORKERS)
    if is_plain and values["no_python"] and not values["run_path"]:
        return {"nproc": values["nproc_per_node"]}
    from phalanx.cli.worker_values import worker_fields

    return worker_fields(values)


_AROUND_WORKERS = ("debug_rank", "devices", "omp_threads", "python", "virtual_local_rank")


def _stopping(values: Values) -> dict[str, Any]:
    """Return which signals stop the job, which reach the workers, and which one goes ahead of a stop."""
    stop_signals, pass_signals = values.mistakes.of(_signals, values) or ((), ())
    warn_signal: int | None = values["warn_signal"]
    warn_before_s: float | None = values["warn_before"]
    if warn_signal is not None or warn_before_s is not None:
        from phalanx.launcher.checks import warning_of

        warn_signal, warn_before_s = warning_of(warn_signal, warn_before_s)
    return {
        "stop_signals": stop_signals,
        "pass_signals": pass_signals,
        "warn_signal": warn_signal,
        "warn_before_s": warn_before_s or 0.0,
        "grace_s": values["shutdown_timeout"],
        "restart_grace_s": values["restart_timeout"],
        "resize_grace_s": values["resize_timeout"],
        "exit_barrier_s": values["exit_barrier_timeout"],
        "straggler_s": values["straggler_timeout"],
    }


def _signals(values: Values) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which signals stop the job and which are passed on to the workers; no signal does both."""
    stop, passed_by = values.origins["signals_to_handle"], values.origins["pass_signals"]
    if values.given.isdisjoint(("signals_to_handle", "pass_signals")):
        return STOP_SIGNALS, PASS_SIGNALS
    listed, unknown = values["signals_to_handle"]
    further, unknown_further = values["pass_signals"] or ((), ())
    if unknown_further:
        raise UsageError(f"{passed_by}: this system has no signal {unknown_further[0]!r}")
    if unknown and not listed:
        raise UsageError(
            f"{stop}: this system has no signal {unknown[0]!r}, and no other one would stop the job"
        )
    if unknown:  # torchrun goes on without them, so a job that ran there runs here
        warn(f"{stop}: this system has no signal {', '.join(map(repr, unknown))}; the others are handled")
    from phalanx.launcher.checks import sort_signals

    stops, passed, found = sort_signals(
        listed,
        further,
        is_asked="signals_to_handle" in values.given,
        called=lambda field: values.origins[
            "pass_signals" if field == "pass_signals" else "signals_to_handle"
        ],
    )
    for one in found:
        sentence = one.text(lambda _: passed_by)
        if one.is_error:
            raise UsageError(sentence)
        warn(sentence)
    return stops, passed


def _nodes(values: Values) -> dict[str, Any]:
    """Return how many nodes there are, and how they know each other."""
    smallest, largest = values["nnodes"]
    return {
        "min_nodes": smallest,
        "max_nodes": largest,
        "run_id": values["rdzv_id"] or None,
        "secret": values["secret_file"] or os.fsencode(values.environ.get(SECRET, "")) or None,
    }


def _restarts(values: Values) -> dict[str, Any]:
    """Return when a failed job is tried again."""
    if values.mistakes:  # a mistake is told before the agent is imported
        return {}
    return {"restarts": policy_of(values), "exclude_for_s": values["exclude_for"]}


def policy_of(values: Values) -> RestartPolicy:
    """Return the policy that was asked for; what could not be read is in it as if nobody had said it."""
    from phalanx.agent.restarts.policy import RestartPolicy

    known = values.known(_POLICY)
    refill_after_s, refill_on_progress = known.pop("restart_refill", (None, False))
    backoff_s, backoff_max_s = known.pop("restart_backoff", (1.0, 60.0))
    return RestartPolicy(
        **{_POLICY[dest]: value for dest, value in known.items()},
        refill_after_s=refill_after_s,
        refill_on_progress=refill_on_progress,
        backoff_s=backoff_s,
        backoff_max_s=backoff_max_s,
        tries_hopeless_once=True,
    )


_POLICY = {
    "max_restarts": "max_restarts",
    "restart_window": "window_s",
    "restart_refill": "refill_after_s",
    "restart_backoff": "backoff_s",
    "give_up_after": "give_up_after",
    "restart_on": "restart_on",
    "no_restart_on": "no_restart_on",
    "exclude_on": "exclude_on",
}


_THEMES: tuple[Callable[[Values], dict[str, Any]], ...] = (
    _program,
    _worker_fields,
    _stopping,
    _nodes,
    _restarts,
)


def check_meeting(fields: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Find what is wrong with the words about other nodes; a plain job on one machine has none. May warn."""
    from phalanx.launcher.options import RunOptions
    from phalanx.launcher.rendezvous.meeting import MeetingError, is_alone, meeting_of

    options = RunOptions(**fields)
    if is_alone(options) and not (options.rdzv_conf or options.rdzv_endpoint):
        return
    try:
        meeting = meeting_of(options)
    except MeetingError as reason:
        raise UsageError(f"{origins[reason.about]}: {reason}") from None
    if meeting.make_handler is not None and options.restart_scope == "worker":
        from phalanx.launcher.scope import whole_rounds_only

        raise UsageError(f"{origins['restart_scope']}: {whole_rounds_only(options.rdzv_backend)}")
    for about, sentence in meeting.warnings:
        warn(f"{origins[about]}: {sentence}")


def _check_log_dir(log_dir: str | None, origin: str) -> None:
    """Make the log folder, as torchrun does, so that what is wrong with it is known before workers start."""
    if log_dir is None or log_dir == os.devnull:
        return
    try:
        os.makedirs(log_dir, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{origin}: cannot make the folder {log_dir!r}: {error.strerror}") from None
    if not os.access(log_dir, os.W_OK | os.X_OK):
        raise UsageError(f"{origin}: cannot write into the folder {log_dir!r}; check its permissions")
