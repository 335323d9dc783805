"""What workers find around them: interpreter, devices, threads, terminal. From values that were read to fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import Unread, UsageError, warn

if TYPE_CHECKING:
    from phalanx.cli.values import Values

__all__ = ["check_binding", "worker_count", "worker_fields"]


def worker_fields(values: Values) -> dict[str, Any]:
    """Return ``nproc`` and the fields about devices, interpreter and terminal. Raises ``UsageError``; may warn."""
    found = values.mistakes
    python = found.of(_python, values)
    nproc = found.of(worker_count, values)
    if nproc is None:
        raise Unread
    found.of(_check_devices, values, nproc)
    return {
        "nproc": nproc,
        "python": python,
        **{name: values[name] for name in ("devices", "virtual_local_rank", "omp_threads", "debug_rank")},
    }


def worker_count(values: Values) -> int:
    """Return how many workers this node has; words such as ``auto`` are counted. Raises ``UsageError``."""
    asked = values["nproc_per_node"]
    if isinstance(asked, int):
        return asked
    from phalanx.launcher.hardware.slots import count_slots

    try:
        return count_slots(asked, devices=values["devices"], environ=_known(values))
    except ValueError as reason:
        raise UsageError(f"{values.origins['nproc_per_node']}: {reason}") from None


def _known(values: Values) -> dict[str, str]:
    """The environment that workers will have: ours, and over it what a configuration file gives them."""
    return {**values.environ, **values.env}


def _check_devices(values: Values, nproc: int) -> None:
    if values["devices"] is None and not values["virtual_local_rank"]:
        return
    from phalanx.launcher.hardware.devices import DeviceError, mask_of

    try:
        mask_of(
            values["devices"],
            is_virtual=values["virtual_local_rank"],
            nproc=nproc,
            inherited=_known(values),
        )
    except DeviceError as reason:
        raise UsageError(f"{values.origins[reason.about]}: {reason}") from None


def _python(values: Values) -> str | None:
    """The interpreter that was asked for; what torchrun's variable names is of no interest to a command."""
    from phalanx.launcher.interpreter import PYTHON, interpreter, mix_up, why_not

    python, origin = values["python"], values.origins["python"]
    if values["no_python"] and not values["run_path"]:
        return (
            None if python is None or origin == PYTHON else str(python)
        )  # a flag is refused with the others
    if python is None:
        if warning := mix_up(interpreter(None, values.environ), values.environ):
            warn(warning)
    elif reason := why_not(python, values.environ):
        raise UsageError(f"{origin}: {reason}")
    return str(python) if python is not None else None


def check_binding(fields: Mapping[str, Any], origin: str) -> None:
    """Find out whether the workers can be bound to CPUs as ``numa_binding`` says. Raises ``UsageError``."""
    from phalanx.launcher.hardware.binding import binding_of
    from phalanx.launcher.options import RunOptions
    from phalanx.multiprocessing.affinity import BindingError

    try:
        binding_of(RunOptions(**fields))
    except BindingError as reason:
        raise UsageError(f"{origin}: {reason}") from None
