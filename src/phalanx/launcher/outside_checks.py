"""What only this machine can say of a job's options: which plug-ins and devices there are, and how nodes would meet.

With ``checks`` this is all that a program hears of its options before anything starts. The command line asks the same
questions where it reads its words, because a plain job is to load none of this.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from phalanx.launcher.checks import Called, Finding, check, check_limits
from phalanx.launcher.plugins import check_backend, check_event_handler
from phalanx.launcher.rendezvous.meeting import MeetingError, meeting_of

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions

__all__ = ["judge", "outside_findings"]


def judge(
    options: RunOptions,
    *,
    asked: Collection[str],
    called: Called,
    is_function: bool = False,
    asks_outside: bool = True,
) -> None:
    """Warn of what has no effect, of the fields that were ``asked`` for. Raises ``ValueError`` for what cannot be.

    ``asks_outside=False``: objects of the program stand behind some names, which nobody else knows.
    """
    found = list(check_limits(options))
    if not found:
        found.extend(check(options, asked=asked, called=called, is_function=is_function))
    if asks_outside and not any(one.is_error for one in found):
        found.extend(outside_findings(options))
    for one in found:
        if one.is_error:
            raise ValueError(one.text(called))
    for one in found:
        warnings.warn(one.text(called), stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """For ``stacklevel``: how far it is from ``judge`` to the program that gave the options."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "phalanx":
        depth, frame = depth + 1, frame.f_back
    return depth + 1


def outside_findings(options: RunOptions) -> Iterator[Finding]:
    """What is wrong with names of plug-ins, with devices, and with the words about other nodes."""
    for field, check_name in (("event_log_handler", check_event_handler), ("rdzv_backend", check_backend)):
        try:
            check_name(getattr(options, field))
        except ValueError as reason:
            yield Finding((field,), str(reason))
            return
    yield from _devices(options)
    try:
        meeting = meeting_of(options)
    except MeetingError as reason:
        yield Finding((reason.about,), str(reason))
        return
    if meeting.make_handler is not None and options.restart_scope == "worker":
        from phalanx.launcher.scope import whole_rounds_only

        yield Finding(("restart_scope",), whole_rounds_only(options.rdzv_backend))
    for about, sentence in meeting.warnings:
        yield Finding((about,), sentence, is_error=False)


def _devices(options: RunOptions) -> Iterator[Finding]:
    if options.devices is None and not options.virtual_local_rank and options.numa_binding is None:
        return
    from phalanx.launcher.hardware.devices import DeviceError, mask_of

    inherited = {**os.environ, **options.env}
    try:
        mask_of(
            options.devices, is_virtual=options.virtual_local_rank, nproc=options.nproc, inherited=inherited
        )
    except DeviceError as reason:
        yield Finding((reason.about,), str(reason))
        return
    if options.numa_binding is None:
        return
    from phalanx.launcher.hardware.binding import binding_of
    from phalanx.multiprocessing.affinity import BindingError

    try:
        binding_of(options)
    except BindingError as reason:
        yield Finding(("numa_binding",), str(reason))
