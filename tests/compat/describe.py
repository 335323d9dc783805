"""Describes the public names of torchelastic's modules as this interpreter has them; prints JSON.

``python -m tests.compat.describe`` in an environment without ``PHALANX_COMPAT`` describes torch's own modules, with
it those that stand in for them; ``… describe names.json`` those modules and names alone that the file has. What is
public is what appendix A of the specification calls so: ``__all__``, or, where there is none, what the module itself
defines; and what a package passes on from a module of the same tree.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
from types import ModuleType
from typing import Any

ROOTS = (
    "torch.distributed.argparse_util",
    "torch.distributed.elastic",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "torch.distributed.run",
)


def inside(module: str | None) -> bool:
    """Whether a module of this name belongs to torchelastic."""
    return module is not None and any(module == root or module.startswith(root + ".") for root in ROOTS)


def modules() -> list[str]:
    """The names of all modules of torchelastic that this interpreter finds."""
    found = []
    for root in ROOTS:
        found.append(root)
        path = getattr(importlib.import_module(root), "__path__", None)
        if path is not None:
            found += [entry.name for entry in pkgutil.walk_packages(path, root + ".")]
    return sorted(found)


def public(module: ModuleType) -> list[str]:
    """The public names of one module."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and (inspect.isclass(value) or inspect.isfunction(value) or inside(type(value).__module__))
        and (inside(getattr(value, "__module__", None)) or inside(type(value).__module__))
    )


def signature(value: Any) -> list[list[Any]] | None:
    """Each parameter as [name, kind, default as text or None]; None for what has no signature of its own."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, _default(p)] for p in found.parameters.values()]


def _default(parameter: inspect.Parameter) -> str | None:
    if parameter.default is parameter.empty:
        return None
    return re.sub(r" at 0x[0-9a-f]+|[\w.]*<lambda>", "", repr(parameter.default))


def describe(value: Any) -> dict[str, Any]:
    """What one name is: kind, signature, members."""
    if inspect.isclass(value):
        return _class(value)
    if callable(value) and (inspect.isroutine(value) or inspect.isfunction(value)):
        return {"kind": "function", "signature": signature(value)}
    if isinstance(value, str | int | float | bool):
        return {"kind": "constant", "value": value}
    return {"kind": "object"}


def _class(value: type) -> dict[str, Any]:
    if issubclass(value, enum.Enum):
        members = {member.name: member.value for member in value}
        kind = "flag" if issubclass(value, enum.Flag) else "enum"
        return {"kind": kind, "members": members, "methods": _methods(value)}
    if issubclass(value, BaseException):
        bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ != "object"]
        return {"kind": "exception", "bases": bases, "methods": _methods(value), "signature": _init(value)}
    return {"kind": "class", "methods": _methods(value), "signature": _init(value)}


def _init(value: type) -> list[list[Any]] | None:
    """The signature of ``__init__`` if the class, or a base of the same tree, has one."""
    return signature(value) if "__init__" in _own(value) or "__new__" in _own(value) else None


def _own(value: type) -> dict[str, Any]:
    """What the class has from itself and bases that are not the language's or somebody else's."""
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if inside(base.__module__) or base.__module__.partition(".")[0] == "phalanx":
            found.update(vars(base))
    return found


def _methods(value: type) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, found in sorted(_own(value).items()):
        if name.startswith("_"):
            continue
        if isinstance(found, property) or inspect.isdatadescriptor(found):
            described[name] = "property"
        elif inspect.isroutine(inspect.getattr_static(value, name, None)) or isinstance(
            found, classmethod | staticmethod
        ):
            described[name] = signature(getattr(value, name))
    return described


def main() -> None:
    """Print {module: {name: description}}."""
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            wanted = {module: list(names) for module, names in json.load(file).items()}
    else:
        wanted = {name: public(importlib.import_module(name)) for name in modules()}
    everything = {name: _described(importlib.import_module(name), names) for name, names in wanted.items()}
    print(_as_json(everything))


def _described(module: ModuleType, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = describe(getattr(module, name))
        except AttributeError as reason:
            found[name] = {"kind": "missing", "reason": str(reason)}
        except ModuleNotFoundError as reason:
            found[name] = {"kind": "missing", "reason": f"it needs {reason.name}"}
    return found


def _as_json(everything: dict[str, dict[str, Any]]) -> str:
    """JSON with one name a line, so that a new release of torch is a readable difference."""
    parts = []
    for module, names in sorted(everything.items()):
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(names.items())]
        body = "\n" + ",\n".join(lines) + "\n " if lines else ""
        parts.append(f" {json.dumps(module)}: {{{body}}}")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    main()
