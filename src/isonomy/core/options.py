"""Options: one definition, one check and one wording, for everything that has options.

Algorithms, attacks, defences and local work declare their options as fields of a dataclass, with
`option`. Models, data sets and partitions declare them as a mapping from names to `Option`.

>>> options = {"minimum": Option(10, "rows of the smallest client", ge=1)}
>>> check("data.partition", "iid", options, {"minimum": 5})
{'minimum': 5}
>>> check("data.partition", "iid", options, {"minimum": 0})  # doctest: +NORMALIZE_WHITESPACE
Traceback (most recent call last):
isonomy.errors.ConfigError: data.partition.minimum = 0 is not allowed; give a whole number of at
    least 1 (default: 10).
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from isonomy.core.search_space import SearchSpace
from isonomy.errors import ConfigError, did_you_mean

T = TypeVar("T")

REQUIRED = dataclasses.MISSING
"""The default of an option that has to be given."""


@dataclass(frozen=True)
class Option:
    """One option: its default, its meaning, and the values it allows.

    `type` is an annotation such as `int`, `float | None`, `Literal["a", "b"]` or
    `tuple[int, ...]`; if it is None, it is the type of the default. `choices` lists the allowed
    values, if only some are. The limits `ge` (at least), `gt` (above), `le` (at most) and `lt`
    (below) apply to a number, or to each number of a list. `search` are the values among which
    `isonomy tune` searches; without it, the option is not tuned.
    """

    default: Any
    meaning: str
    type: Any = None
    choices: tuple[str, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    search: SearchSpace | None = None

    @property
    def annotation(self) -> Any:
        """The option's type, which follows from the default unless it is given."""
        return _type_of(self.default) if self.type is None else self.type

    @property
    def allowed(self) -> str:
        """The values that the option allows, in words."""
        if self.choices:
            return _one_of(self.choices)
        return f"{type_words(self.annotation)} {limit_words([self])}".strip()

    def convert(self, value: Any) -> Any:
        """The value in the option's type; raises a ValueError if it is not allowed."""
        if self.choices and value not in self.choices:
            raise ValueError
        return _converted(value, self.annotation, self)


def option(
    default: Any, meaning: str, *, search: SearchSpace | None = None, **limits: float
) -> Any:
    """A field of a dataclass that is an option: its default, meaning, search space and limits."""
    about = {"meaning": meaning, "search": search, "limits": limits}
    return dataclasses.field(default=default, metadata=about)


def options_of(kind: type) -> dict[str, Option]:
    """The options of a dataclass: its fields."""
    hints = get_type_hints(kind)
    out = {}
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        about = field.metadata
        if field.init:
            out[field.name] = Option(
                default,
                about.get("meaning", ""),
                hints[field.name],
                search=about.get("search"),
                **about.get("limits", {}),
            )
    return out


def search_spaces(**tables: type) -> dict[str, SearchSpace]:
    """The search spaces of the options of dataclasses, by keys such as 'local.lr'.

    >>> from isonomy.core.work import Work
    >>> search_spaces(local=Work)["local.lr"].text
    '0.001 to 1, logarithmic'
    """
    return {
        f"{table}.{name}": option.search
        for table, kind in tables.items()
        for name, option in options_of(kind).items()
        if option.search is not None
    }


def check(
    table: str, name: str, options: Mapping[str, Option], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of all options: the given ones, checked, and the defaults of the others.

    `table` is the table of the config that holds the options, such as 'algorithm', and `name` is
    what they belong to; it is empty if the options are the keys of the table itself. Raises a
    ConfigError for an option that does not exist, a value that is not allowed, or a required
    option that is missing.
    """
    out = {key: option.default for key, option in options.items()}
    for key, value in given.items():
        if key not in options:
            raise unknown_option(table, name, key, options)
        try:
            out[key] = options[key].convert(value)
        except ValueError:
            raise ConfigError(_not_allowed(f"{table}.{key}", value, options[key])) from None
    for key, value in out.items():
        if value is REQUIRED:
            raise ConfigError(f"{table}.{key} is missing; give {options[key].allowed}.")
    return out


def build(table: str, name: str, kind: type[T], given: Mapping[str, Any] | None = None) -> T:
    """An object of the dataclass `kind` with the given options, checked as in `check`.

    A ValueError of the dataclass itself becomes a ConfigError.
    """
    values = check(table, name, options_of(kind), given or {})
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{table} '{name}': {error}") from None


def unknown_key(table: str, key: str, known: Iterable[str]) -> str:
    """The sentence for a key that a table of the config does not have."""
    names = list(known)
    full = f"{table}.{key}" if table else key
    hint = did_you_mean(key, names)
    if hint or not names:
        return f"unknown key '{full}'; correct or remove it.{hint}"
    return f"unknown key '{full}'; the keys there are {', '.join(names)}."


def unknown_option(table: str, name: str, key: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist."""
    names = sorted(known)
    if not name:
        return ConfigError(unknown_key(table, key, names))
    if not names:
        return ConfigError(f"{table}.{key}: '{name}' has no options; remove it.")
    return ConfigError(
        f"{table}.{key}: '{name}' has no option '{key}'; its options are {', '.join(names)}."
        f"{did_you_mean(key, names)}"
    )


def _not_allowed(key: str, value: Any, option: Option) -> str:
    return f"{not_allowed(key, value, option.allowed)}{_default_words(option.default)}."


def not_allowed(key: str, value: Any, allowed: str) -> str:
    """What is wrong with the value of a key and which values are allowed, without a full stop."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{key} = {shown} is not allowed; give {allowed}"


def _default_words(default: Any) -> str:
    if default is REQUIRED or default in (None, "", (), {}):
        return ""
    return f" (default: {list(default) if isinstance(default, tuple) else default!r})"


# --- values --------------------------------------------------------------------------------------


def _type_of(default: Any) -> Any:
    """The type of a default value, as an annotation."""
    if isinstance(default, Mapping):
        return dict
    if isinstance(default, list | tuple):
        item = type(default[0]) if default else str
        return tuple.__class_getitem__((item, ...))
    return type(default)


def _converted(value: Any, annotation: Any, option: Option) -> Any:
    """The value in the annotation's type; a ValueError if that is impossible.

    A whole number also serves as a number, and a single value as a list of one.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin is Literal:
        return _require(value, value in inner)
    if origin in (Union, types.UnionType):
        return _in_union(value, inner, option)
    if origin in (tuple, list):
        items = value if isinstance(value, list | tuple) else [value]
        many = origin is list or (len(inner) == 2 and inner[1] is Ellipsis)
        kinds = [inner[0]] * len(items) if many else list(inner)
        _require(value, len(kinds) == len(items))
        pairs = zip(items, kinds, strict=True)
        return origin(_converted(item, kind, option) for item, kind in pairs)
    if annotation in (dict, Mapping) or origin in (dict, Mapping):
        return dict(_require(value, isinstance(value, Mapping)))
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    _require(value, isinstance(value, annotation or type(None)))
    _require(value, annotation is bool or not isinstance(value, bool))
    return _require(value, not isinstance(value, int | float) or _within(value, option))


def _in_union(value: Any, members: Sequence[Any], option: Option) -> Any:
    exact = [member for member in members if member is type(value)]
    for member in (*exact, *members):
        try:
            return _converted(value, member, option)
        except ValueError:
            continue
    raise ValueError


def _require(value: Any, right: bool) -> Any:
    if not right:
        raise ValueError
    return value


def _within(value: float, option: Option) -> bool:
    return (
        (option.ge is None or value >= option.ge)
        and (option.gt is None or value > option.gt)
        and (option.le is None or value <= option.le)
        and (option.lt is None or value < option.lt)
    )


# --- words ---------------------------------------------------------------------------------------

_ONE = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_MANY = {int: "whole numbers", float: "numbers", str: "strings"}


def type_words(annotation: Any) -> str:
    """An annotation in words.

    >>> type_words(float), type_words(int | Literal["auto"]), type_words(tuple[int, ...])
    ('a number', "a whole number or 'auto'", 'a list of whole numbers')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [b for field in inner[1:] for b in getattr(field, "metadata", [field])]
        return f"{type_words(inner[0])} {limit_words(bounds)}".strip()
    if origin is Literal:
        return _one_of(inner)
    if origin in (Union, types.UnionType):
        members = [member for member in inner if member is not type(None)]
        return " or ".join(dict.fromkeys(type_words(member) for member in members))
    if origin in (list, tuple):
        count = "" if origin is list or Ellipsis in inner else f"{len(inner)} "
        items = _MANY.get(inner[0]) if inner else None
        return f"a list of {count}{items}" if items else "a list"
    if annotation in _ONE:
        return _ONE[annotation]
    return "another value" if annotation is Any else "a table"


def limit_words(bounds: Iterable[Any]) -> str:
    """The limits in words; each bound has some of the attributes ge, gt, le and lt."""
    signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = [
        f"{words} {limit:g}" if math.isfinite(limit) else "finite"
        for bound in bounds
        for name, words in signs.items()
        if (limit := getattr(bound, name, None)) is not None
    ]
    text = " and ".join(found)
    return f"of {text}" if text.startswith("at ") else text


def _one_of(values: Sequence[Any]) -> str:
    listed = ", ".join(repr(value) for value in values)
    return f"one of {listed}" if len(values) > 1 else listed
