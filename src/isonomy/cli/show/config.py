"""The page of every key of a config, with defaults and meanings."""

from __future__ import annotations

from isonomy.cli.printing import print_columns, print_heading, print_line
from isonomy.cli.shell import console
from isonomy.cli.show.options import value_text


def show(name: str) -> bool:
    """Print every key of a config, if the name is 'config'."""
    if name != "config":
        return False
    from pydantic import BaseModel

    from isonomy.config.schema import Config

    rows: list[tuple[str, ...]] = []

    def add(model: type[BaseModel], prefix: str) -> None:
        for key, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                add(kind, f"{prefix}{key}.")
            elif key != "versions":
                default = field.get_default(call_default_factory=True)
                rows.append((prefix + key, value_text(default), field.description or ""))

    add(Config, "")
    out = console()
    print_heading(out, "config: every key of an experiment's config", "a TOML file, or key=value")
    print_columns(out, "Keys", ("key", "default", "meaning"), rows)
    print_line(out, "Data sets, models and algorithms have further options: isonomy show NAME.")
    return True
