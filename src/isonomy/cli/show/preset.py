"""The page of a packaged config or a preset: the paper's numbers, methods, settings, scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isonomy.cli.packaged_configs import opening_comment, packaged_configs, text_of
from isonomy.cli.printing import print_columns, print_heading, print_line, print_text
from isonomy.cli.shell import console
from isonomy.cli.show.options import value_text

if TYPE_CHECKING:
    from rich.console import Console

_NOT_CHANGES = ("label", "setting", "series", "algorithm")  # keys of a method that name it


def show(name: str) -> bool:
    """Print the page of a packaged config or a preset."""
    values = packaged_configs().get(name)
    if values is None:
        return False
    out = console()
    if "preset" in values:
        _print_preset(out, name, values)
    else:
        print_heading(out, f"{name}: {opening_comment(name)}", "packaged config")
        print_text(out, text_of(name))
        print_line(out, f"To run it: isonomy compare {name}")
    return True


def _print_preset(out: Console, name: str, values: dict[str, Any]) -> None:
    head = values["preset"]
    print_heading(out, f"{name}: {head['title']}", f"preset; {head['paper']}")
    print_text(out, head["text"].strip())
    expected = _expected(values)
    if expected:
        heads = ("method", "setting", "metric", "paper", "note")
        print_columns(out, "Numbers in the paper", heads, expected)
    methods = [
        (m["label"], m.get("setting", ""), value_text(m["algorithm"]), _changes(m, _NOT_CHANGES))
        for m in values["methods"]
    ]
    print_columns(out, "Methods", ("method", "setting", "algorithm", "other changes"), methods)
    settings = [(s["name"], _changes(s, ("name",))) for s in values.get("settings", ())]
    if settings:
        print_columns(out, "Settings, each with every method", ("setting", "changes"), settings)
    default = head.get("scale", "full")
    scales = {key: scale["text"] for key, scale in values.get("scale", {}).items()}
    scales["full"] = "The whole preset."
    rows = [(key + (" (default)" if key == default else ""), text) for key, text in scales.items()]
    print_columns(out, "Scales", ("scale", "what it is"), rows)
    for text in head.get("notes", ()):
        print_line(out, f"- {text}")
    print_line(out, f"To run it: isonomy reproduce {name}")


def _expected(values: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per number that the paper prints."""
    rows: list[tuple[str, ...]] = []
    for e in values.get("expected", ()):
        if "values" in e:  # one number per metric of the preset, in each setting
            rows += [
                (e["method"], setting, metric, value_text(number), "")
                for setting, numbers in e["values"].items()
                for metric, number in zip(values["preset"]["metrics"], numbers, strict=True)
            ]
        else:
            setting, note = e.get("setting", ""), e.get("note", "")
            rows.append((e["method"], setting, e["metric"], value_text(e["value"]), note))
    return rows


def _changes(table: dict[str, Any], without: tuple[str, ...]) -> str:
    return ", ".join(f"{k} = {value_text(v)}" for k, v in table.items() if k not in without)
