"""What ``phalanx.launcher.checks`` finds in a job, in the words of the command line, and what a command alone can have.

Nobody is warned of an option that stands in a variable which is not this launcher's alone (``TORCHELASTIC_…``): that
one may be the whole site's. Loads only if an option was given that is not always useful.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS
from phalanx.launcher.checks import Finding, check
from phalanx.launcher.options import RunOptions

if TYPE_CHECKING:
    from phalanx.cli.values import Values

__all__ = ["FIELDS", "check_company", "idle_options"]

FIELDS: dict[str, str] = {option.dest: option.field or option.dest for option in OPTIONS}
"""The field that each option is about; those of a command alone have none, and are called by their own name."""
_DESTS = {field: dest for dest, field in FIELDS.items()} | {"restarts.refill_on_progress": "restart_refill"}
_OPTIONS = {option.dest: option for option in OPTIONS}


def check_company(values: Values, fields: Mapping[str, Any], *, is_all_read: bool = True) -> list[Finding]:
    """Return what has no effect. Raises ``UsageError`` for what contradicts something else.

    ``is_all_read=False``: some values are not known, and stand-ins are in their place. Those are nobody's mistake.
    """
    asked = {FIELDS[dest] for dest in values.given if is_all_read and _asks_for_something(values, dest)}
    found = list(check(RunOptions(**fields), asked=asked, called=lambda field: called(values, field)))
    mistakes = [one.text(lambda field: called(values, field)) for one in found if one.is_error]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return found


def idle_options(values: Values, fields: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each reason, naming all options that it makes idle. Raises ``UsageError``."""
    found = check_company(values, fields)
    yield from _of_a_command(values)
    for one in found:
        yield one.text(lambda field: called(values, field))


def called(values: Values, field: str) -> str:
    """How messages name the place where a field was said."""
    return values.origins[_DESTS[field]]


def _of_a_command(values: Values) -> Iterator[str]:
    asked = [dest for dest in ("module", "no_python") if _asks_for_something(values, dest)]
    if asked and values["run_path"]:
        names = ", ".join(values.origins[dest] for dest in asked)
        has = "has" if len(asked) == 1 else "have"
        yield f"{names} {has} no effect: {values.origins['run_path']} runs a script by its path"
    if _asks_for_something(values, "monitor_interval"):
        yield f"{values.origins['monitor_interval']} has no effect: an exit is an event here, nothing is polled"
    if _asks_for_something(values, "print_format") and not (values["print_config"] or values["dry_run"]):
        yield (
            f"{values.origins['print_format']} has no effect: nothing is shown; say --print-config or --dry-run"
        )


def _asks_for_something(values: Values, dest: str) -> bool:
    if dest not in values.given:
        return False
    option = _OPTIONS[dest]
    if values.origins[dest] in option.also:
        return False
    default = None if option.default is None else option.read(option.default)
    return bool(values[dest] != default)
