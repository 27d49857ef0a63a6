"""The keys of the config's tables, whether a table is a pydantic model or a dataclass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from isonomy.core.options import limit_words, options_of, type_words


@dataclass(frozen=True)
class Key:
    """One key: its default, meaning and allowed values in words; its type if it is a table."""

    default: Any
    meaning: str
    allowed: str
    table: type | None = None


def keys_of(table: type) -> dict[str, Key]:
    """The keys of a table, by name."""
    if dataclasses.is_dataclass(table):
        return {
            name: Key(option.default, option.meaning, option.allowed)
            for name, option in options_of(table).items()
        }
    assert issubclass(table, BaseModel)
    out = {}
    for name, field in table.model_fields.items():
        kind = field.annotation
        inner = kind if isinstance(kind, type) and is_table(kind) else None
        out[name] = Key(
            default=field.get_default(call_default_factory=True),
            meaning=field.description or "",
            allowed=f"{type_words(kind)} {limit_words(field.metadata)}".strip(),
            table=inner,
        )
    return out


def is_table(kind: type) -> bool:
    """Whether values of the type are tables of a config."""
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def table_at(root: type, path: list[str]) -> type | None:
    """The table at a path of keys below `root`; None if there is none."""
    table = root
    for part in path:
        found = keys_of(table).get(part)
        if found is None or found.table is None:
            return None
        table = found.table
    return table
