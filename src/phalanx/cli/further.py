"""What else is wrong with a job in which a mistake was found: all of it is told at once.

Loads only then. Checks that look at the whole job get the defaults in the place of what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.cli.idle import check_company
from phalanx.cli.sources import asked
from phalanx.cli.values import Values, check_meeting, fields_of, policy_of
from phalanx.cli.words import CommandLine
from phalanx.cli.worker_values import check_binding

__all__ = ["check_further"]

_ABOUT_MEETING = (
    "min_nodes",
    "max_nodes",
    "local_addr",
    "node_rank",
    "rdzv_backend",
    "rdzv_conf",
    "rdzv_endpoint",
    "restart_scope",
    "standalone",
)
_ASK_FOR_MORE = frozenset({"nnodes", "numa_binding", "rdzv_backend", "rdzv_conf", "rdzv_endpoint"})


def check_further(values: Values, fields: Mapping[str, Any]) -> None:
    """Add to the mistakes of ``values`` what can be said without those that were found; ``fields`` are known."""
    stand_ins = fields_of(asked(CommandLine({"no_python": "1"}, "true"), {}))
    known = {**stand_ins, "no_python": False, "restarts": policy_of(values), **fields}
    values.mistakes.of(check_company, values, known, is_all_read=False)
    if not values.given & _ASK_FOR_MORE:
        return
    if all(name in fields for name in _ABOUT_MEETING):
        values.mistakes.of(check_meeting, {**stand_ins, **fields}, values.origins)
    elif "rdzv_conf" in fields:
        alone = {**stand_ins, "rdzv_conf": fields["rdzv_conf"]}
        values.mistakes.of(check_meeting, alone, values.origins)
    if "nproc" in fields and fields.get("numa_binding") is not None:
        values.mistakes.of(_check_binding, {**stand_ins, **fields}, values.origins["numa_binding"])


def _check_binding(fields: Mapping[str, Any], origin: str) -> None:
    from phalanx.launcher.hardware.devices import DeviceError

    try:
        check_binding(fields, origin)
    except DeviceError:
        return  # told already
