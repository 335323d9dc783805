"""Frozen records that are cheap to define: ``class StopAsked(Struct): signal: int``.

A frozen, slotted dataclass compiles its methods from text, about one millisecond per class; with our some sixty events,
commands and records that was a fifth of the start-up time. A ``Struct`` says the same (type checkers read it as a
frozen dataclass) with methods that are written once and read the fields at call time. It is for records of one owner:
no field of another class is inherited but by plain subclassing, and defaults are immutable values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from inspect import Signature

__all__ = ["PLAIN_KINDS", "Struct", "changed", "fits"]

# Annotations whose values are written as JSON as they are, and the types that such a value is read back as.
PLAIN_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "str": (str,),
    "str | None": (str, type(None)),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}

StructT = TypeVar("StructT", bound="Struct")


class _StructType(type):
    """Turns the annotations of a class into slots, in order, base classes first."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, kw_only: bool = False
    ) -> _StructType:
        own = [
            field
            for field, kind in namespace.get("__annotations__", {}).items()
            if not str(kind).startswith(("ClassVar", "typing.ClassVar"))
        ]
        defaults: dict[str, Any] = {}
        inherited: tuple[str, ...] = ()
        for base in bases:
            inherited += getattr(base, "__struct_fields__", ())
            defaults.update(getattr(base, "__struct_defaults__", {}))
        defaults.update({field: namespace.pop(field) for field in own if field in namespace})
        namespace["__slots__"] = tuple(own)
        namespace["__struct_fields__"] = fields = (*inherited, *own)
        namespace["__struct_set__"] = frozenset(fields)
        namespace["__struct_defaults__"] = defaults
        namespace["__match_args__"] = namespace["__struct_positional__"] = () if kw_only else fields
        return super().__new__(mcls, name, bases, namespace)

    def __init__(cls, *args: Any, **options: Any) -> None:
        super().__init__(*args)

    @property
    def __signature__(cls) -> Signature:
        """The fields as parameters, for ``help()`` and whoever asks ``inspect``: the one ``__init__`` names none."""
        if any("__init__" in vars(base) for base in cls.__mro__[: cls.__mro__.index(Struct)]):
            raise AttributeError("__signature__")
        from inspect import Parameter, Signature

        positional: tuple[str, ...] = cls.__dict__["__struct_positional__"]
        defaults: dict[str, Any] = cls.__dict__["__struct_defaults__"]
        return Signature(
            [
                Parameter(
                    field,
                    Parameter.POSITIONAL_OR_KEYWORD if field in positional else Parameter.KEYWORD_ONLY,
                    default=defaults.get(field, Parameter.empty),
                )
                for field in cls.__dict__["__struct_fields__"]
            ]
        )


@dataclass_transform(frozen_default=True)
class Struct(metaclass=_StructType):
    """A frozen record: made by position or name, equal to a record of the same class with equal fields, hashable.

    With ``kw_only=True`` among the class arguments, fields are given by name only. Raises ``TypeError`` for a missing
    or unknown field and ``AttributeError`` on assignment, as a frozen dataclass does.
    """

    __struct_fields__: ClassVar[tuple[str, ...]]
    __struct_set__: ClassVar[frozenset[str]]
    __struct_positional__: ClassVar[tuple[str, ...]]
    __struct_defaults__: ClassVar[dict[str, Any]]

    def __init__(self, *args: Any, **given: Any) -> None:
        cls = type(self)
        positional = cls.__struct_positional__
        if not given and len(args) == len(positional) == len(cls.__struct_fields__):
            for field, value in zip(positional, args, strict=True):  # by far the most are made so
                object.__setattr__(self, field, value)
            return
        if len(args) > len(positional):
            raise TypeError(f"{cls.__name__} takes {len(positional)} positional fields, not {len(args)}")
        if not args and len(given) == len(cls.__struct_fields__) and given.keys() == cls.__struct_set__:
            for field, value in given.items():
                object.__setattr__(self, field, value)
            return
        values = dict(zip(positional, args, strict=False))
        if twice := values.keys() & given.keys():
            raise TypeError(f"{cls.__name__} got {min(twice)!r} twice")
        values = {**cls.__struct_defaults__, **values, **given}
        if values.keys() != set(cls.__struct_fields__):
            wrong = sorted(values.keys() ^ set(cls.__struct_fields__))
            raise TypeError(f"{cls.__name__}: missing or unknown {', '.join(wrong)}")
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field) for field in self.__struct_fields__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, field) for field in self.__struct_fields__)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field}={getattr(self, field)!r}" for field in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {field: getattr(self, field) for field in self.__struct_fields__})


def changed(record: StructT, **changes: Any) -> StructT:
    """The same record with other values in some of its fields. Raises ``TypeError`` for a field that it has not."""
    fields = {field: getattr(record, field) for field in record.__struct_fields__}
    return type(record)(**{**fields, **changes})


def fits(kind: str, value: object) -> bool:
    """Whether a value that was read from JSON may stand in a field with this annotation, one of ``PLAIN_KINDS``.

    A truth is no number, and what is not finite (JSON as Python reads it has such numbers) is no time.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, PLAIN_KINDS[kind]) and isinstance(value, bool) == (kind == "bool")


def _rebuild(cls: type[Struct], fields: dict[str, Any]) -> Struct:
    return cls(**fields)
