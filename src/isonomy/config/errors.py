"""What pydantic finds wrong with a config, in one sentence that names the key."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from isonomy.config.fields import Key, keys_of, table_at
from isonomy.core.options import not_allowed, unknown_key


def sentence(error: ValidationError, root: type) -> str:
    """The first error in full, and the keys of some others."""
    errors = error.errors()
    first = errors[0]
    path = _path(first["loc"])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        above = _path(first["loc"][:-1])  # the last part is a key, whatever it looks like
        table, last = table_at(root, above), str(first["loc"][-1])
        text = unknown_key(".".join(above), last, keys_of(table) if table else ())
        text = _with_table(text, root, [*above, last])
    elif first["type"] == "missing":
        text = f"'{key}' is missing; add it."
    else:
        text = f"{not_allowed(key, first.get('input'), _allowed(first['msg'], root, path))}."
    others = sorted({".".join(_path(other["loc"])) for other in errors[1:]} - {key})
    return f"{text} (Also check {', '.join(others[:5])}.)" if others else text


def _with_table(text: str, root: type, path: list[str]) -> str:
    """The text, or one that names the table which has this key: `lr` is `local.lr`."""
    places = [
        f"{name}.{path[-1]}"
        for name, key in keys_of(root).items()
        if len(path) == 1 and key.table is not None and path[-1] in keys_of(key.table)
    ]
    if not places:
        return text
    named = " or ".join(f"'{place}'" for place in places)
    return f"unknown key '{path[-1]}'; correct or remove it. Did you mean {named}?"


def _path(location: tuple[int | str, ...]) -> list[str]:
    return [str(part) for part in location if not _names_a_union_member(part)]


def _names_a_union_member(part: int | str) -> bool:
    """Whether pydantic added this part to the path, to name the member of a union."""
    if not isinstance(part, str):
        return False
    return part in {"int", "str", "float", "bool"} or "[" in part or part.startswith("constrained-")


def _allowed(message: str, root: type, path: list[str]) -> str:
    key = _key_at(root, path)
    return key.allowed if key is not None else f"another value ({message})"


def _key_at(root: type, path: list[str]) -> Key | None:
    table: Any = table_at(root, path[:-1]) if path else None
    return keys_of(table).get(path[-1]) if table is not None else None
