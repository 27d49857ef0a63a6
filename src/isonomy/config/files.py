"""Read configs from TOML files."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from isonomy.config.overrides import merge, parse_override
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError


def read(path: Path | str, overrides: list[str] | None = None) -> Config:
    """The config in a TOML file, with `key=value` overrides."""
    path = Path(path)
    values = with_data_path(read_toml(path), path.parent)
    for override in overrides or []:
        values = merge(values, parse_override(override))
    return parse(values, where=path.name)


def read_toml(path: Path) -> dict[str, Any]:
    """The values in a TOML file."""
    if path.is_dir() or (path.is_file() and path.suffix in (".csv", ".tsv", ".parquet", ".pq")):
        raise ConfigError(
            f"'{path}' is not a config file; `isonomy init {path}` makes one from the tables there."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file '{path}'; give the path of a TOML config.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' cannot be read ({error}); give a TOML text file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}; fix that line.") from None


def with_data_path(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values with `data.path`, which is relative to the config's folder, made usable here."""
    data = values.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("path"), str) or not data["path"]:
        return values
    return values | {"data": data | {"path": str(folder / os.path.expanduser(data["path"]))}}
