"""Parts of the documentation that are generated from the code.

The page of all config keys (docs/configuration.md) is made from the schema, and the table of
options on an algorithm's page (docs/algorithms/) from its fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from isonomy.config.fields import Key, keys_of
from isonomy.config.schema import Config, NamedTable
from isonomy.core.options import Option, options_of


def all_keys() -> Iterator[tuple[str, Key]]:
    """Every key of a config by its full name, such as 'local.lr', with its meaning."""
    for name, key in keys_of(Config).items():
        if key.table is None:
            yield name, key
        else:
            yield from ((f"{name}.{inner}", k) for inner, k in keys_of(key.table).items())


def reference() -> str:
    """All keys with their meanings, defaults and allowed values, as Markdown."""
    top = keys_of(Config)
    lines = [
        "# Configuration",
        "",
        "A config is a TOML file. Every key has a default, so the file lists only what differs.",
        "On the command line, any key can be given as `key=value`:",
        "`isonomy run my.toml local.lr=0.05`.",
        "This page is generated from the schema (`isonomy.config.reference`).",
        "",
        "## Top level",
        "",
        *_rows({name: key for name, key in top.items() if key.table is None}),
    ]
    for name, key in top.items():
        if key.table is None:
            continue
        about = (key.table.__doc__ or "").strip().split("\n\n")[0]
        lines += ["", f"## [{name}]", "", " ".join(about.split()), "", *_rows(keys_of(key.table))]
        if issubclass(key.table, NamedTable):
            lines += ["", "Other keys are options of what is named; see `isonomy show NAME`."]
    return "\n".join(lines) + "\n"


def _rows(keys: dict[str, Key]) -> Iterator[str]:
    yield "| key | allowed | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, key in keys.items():
        default = "unset" if key.default is None else f"`{key.default!r}`"
        yield f"| `{name}` | {key.allowed.removeprefix('a ')} | {default} | {key.meaning} |"


def option_table(options: Mapping[str, Option]) -> str:
    """Options with their allowed values, defaults and meanings, as a Markdown table.

    >>> print(option_table({"mu": Option(0.1, "strength of the pull", ge=0)}))
    | option | allowed | default | meaning |
    | --- | --- | --- | --- |
    | `mu` | number of at least 0 | `0.1` | strength of the pull |
    """
    lines = ["| option | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    for name, option in options.items():
        default = "unset" if option.default is None else f"`{json.dumps(option.default)}`"
        allowed = option.allowed.removeprefix("a ").removeprefix("one of ")
        lines.append(f"| `{name}` | {allowed} | {default} | {option.meaning} |")
    return "\n".join(lines)


def search_table(kinds: Mapping[str, type]) -> str:
    """The search spaces of the options of these classes, by name, as a Markdown table."""
    lines = ["| algorithm | option | default | values |", "| --- | --- | --- | --- |"]
    for algorithm, kind in kinds.items():
        for name, option in options_of(kind).items():
            if option.search is not None:
                default = f"`{json.dumps(option.default)}`"
                lines.append(f"| {algorithm} | `{name}` | {default} | {option.search.text} |")
    return "\n".join(lines)


def with_option_table(page: str, options: Mapping[str, Option]) -> str:
    """The page of an algorithm, its table of options replaced by an up-to-date one."""
    table = option_table(options)
    return re.sub(r"^\| option \| .*(\n\|.*)*", lambda _: table, page, flags=re.MULTILINE)
