"""`ls` and `show`: what there is, and everything about one of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isonomy.cli import catalogue
from isonomy.cli.shell import console
from isonomy.errors import ConfigError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from isonomy.data.partition import Partition


def add(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("ls")(ls)
    app.command("show")(show)


def ls(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="algorithms, data, models, partitions, attacks, defences or presets; all of them "
            "if left out.",
        ),
    ] = None,
) -> None:
    """List algorithms, data sets, models, partitions, attacks, defences and presets.

    Example: isonomy ls algorithms
    """
    if what is not None and what not in _LISTS:
        raise ConfigError(unknown("list", what, _LISTS))
    out = console()
    for kind in _LISTS if what is None else [what]:
        _LISTS[kind](out)
    if what is None:
        _line(
            out,
            "More on any of them: isonomy show NAME. Every key of a config: isonomy show config.",
        )


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An algorithm, data set, model, partition, attack, defence, preset or metric; "
            "config; or a run.",
        ),
    ],
) -> None:
    """Show one of them: options, meaning, source, and what the server gets to see.

    Example: isonomy show fedprox

    Example: isonomy show client.accuracy.worst10

    Example: isonomy show runs/quickstart
    """
    found = [page for page in _PAGES if page(name)]
    if not found and not _show_partition(name):
        known = [
            *catalogue.algorithms(),
            *(e.name for e in catalogue.datasets()),
            *(e.name for e in catalogue.models()),
            *(e.name for e in catalogue.partitions()),
            *catalogue.attacks(),
            *catalogue.defences(),
            *catalogue.presets(),
            "config",
        ]
        raise ConfigError(unknown("name", name, dict.fromkeys(known)))


# --- ls ------------------------------------------------------------------------------------------


def _algorithms(out: Console) -> None:
    rows = [(a.name, a.family, a.title, a.paper) for a in catalogue.algorithms().values()]
    table(out, "Algorithms", ("name", "family", "what it is", "paper"), rows)


def _entries(title: str, read: Callable[[], list[catalogue.Entry]]) -> Callable[[Console], None]:
    def listed(out: Console) -> None:
        table(out, title, ("name", "what it is"), [(e.name, e.text) for e in read()])

    return listed


def _rules(title: str, read: Callable[[], dict[str, catalogue.Rule]]) -> Callable[[Console], None]:
    def listed(out: Console) -> None:
        rows = [(rule.name, rule.title, rule.paper) for rule in read().values()]
        table(out, title, ("name", "what it is", "paper"), rows)

    return listed


def _presets(out: Console) -> None:
    rows = []
    for name, values in catalogue.presets().items():
        head = values.get("preset")
        run = "isonomy reproduce" if head else "isonomy run, compare, sweep"
        scales = ", ".join([*values.get("scale", {}), "full"]) if head else ""
        rows.append((name, head["title"] if head else catalogue.opening(name), run, scales))
    table(out, "Presets", ("name", "what it is", "used by", "scales"), rows)


_LISTS: dict[str, Callable[[Any], None]] = {
    "algorithms": _algorithms,
    "data": _entries("Data sets", catalogue.datasets),
    "models": _entries("Models", catalogue.models),
    "partitions": _entries("Partitions", catalogue.partitions),
    "attacks": _rules("Attacks", catalogue.attacks),
    "defences": _rules("Defences", catalogue.defences),
    "presets": _presets,
}


# --- show ----------------------------------------------------------------------------------------


def _show_algorithm(name: str) -> bool:
    if ":" not in name and name not in catalogue.algorithms():
        return False
    it = catalogue.algorithm(name)
    out = console()
    _head(out, f"{it.name}: {it.title}", f"algorithm, family {it.family}; {it.paper}")
    _text(out, it.text)
    _options(out, "Hyper-parameters", [(o.name, o.kind, o.default, o.meaning) for o in it.options])
    rows = [(p.name, p.when, p.sent, p.replied, catalogue.SEES[p.verb], p.does) for p in it.phases]
    heads = ("phase", "in", "server sends", "client replies", "server sees", "what the client does")
    table(out, "Phases", heads, rows)
    _line(out, f"Revealed to the server: {it.reveals}.")
    if any(p.verb == "mean" for p in it.phases) and all(p.verb != "weigh" for p in it.phases):
        _line(out, "With a defence it also sees each client's reply of the phases it averages.")
    _line(out, f'In a config: algorithm = {{ name = "{name}"{_shown(it.options)} }}')
    return True


def _show_attack(name: str) -> bool:
    it = catalogue.attacks().get(name)
    if it is None:
        return False
    out = console()
    _head(out, f"{it.name}: {it.title}", f"attack; {it.paper}")
    _options(out, "Options", [(o.name, o.kind, o.default, o.meaning) for o in it.options])
    _line(out, f"The attacker knows: {it.said['sees']}.")
    _line(out, "Also: fraction or clients (who is malicious), labels (poisoned too), seed.")
    _line(out, "Metrics are of the benign clients only.")
    _line(out, f'In a config: attack = {{ name = "{name}", fraction = 0.2{_shown(it.options)} }}')
    return True


def _show_defence(name: str) -> bool:
    it = catalogue.defences().get(name)
    if it is None:
        return False
    out = console()
    _head(out, f"{it.name}: {it.title}", f"defence; {it.paper}")
    _options(out, "Options", [(o.name, o.kind, o.default, o.meaning) for o in it.options])
    _line(out, f"Clients' weights: {it.said['weights']}.")
    if it.said.get("needs"):
        _line(out, f"Needs: {it.said['needs']}.")
    _line(out, "Revealed to the server: every client's update, where it would only see the mean.")
    if it.said.get("losses"):
        _line(out, "Also revealed: every client's loss, in one more exchange a round.")
    _line(out, f'In a config: defence = {{ name = "{name}"{_shown(it.options)} }}')
    return True


def _show_data(name: str) -> bool:
    if all(entry.name != name for entry in catalogue.datasets()):
        return False
    from isonomy.data.datasets import DATASETS

    it = DATASETS[name]
    out = console()
    _head(out, f"{it.name}: {it.description}", f"data set; {it.source}; licence: {it.licence}")
    rows = [(key, _kind(o.default), _value(o.default), o.meaning) for key, o in it.options.items()]
    _options(out, "Options", rows)
    _line(out, f"Protected attributes: {', '.join(it.protected) or 'none'}")
    counted = it.partitions[str(it.partition["name"])].counts
    _line(out, f"Clients: {'as the data has them' if counted else it.clients}")
    _line(out, f"Partition: {_value(dict(it.partition))}")
    _line(out, f"Partitions it understands: {', '.join(it.partitions)}")
    named = f'name = "{name}"' if counted else f'name = "{name}", clients = {it.clients}'
    _line(out, f"In a config: {it.example or f'data = {{ {named} }}'}")
    return True


def _show_model(name: str) -> bool:
    if all(entry.name != name for entry in catalogue.models()):
        return False
    from isonomy.models import MODELS

    it = MODELS[name]
    out = console()
    _head(out, f"{name}: {it.description}", "model")
    rows = [(key, o.holds, _value(o.default), o.meaning) for key, o in it.options.items()]
    _options(out, "Options", rows)
    _line(out, f"Takes: {it.accepts}")
    _line(out, f"Losses: {', '.join(it.losses)} (the first that fits the data is the default)")
    _line(out, f'In a config: model = {{ name = "{name}" }}')
    return True


def _show_partition(name: str) -> bool:
    from isonomy.data.datasets import DATASETS
    from isonomy.data.partition import IMAGE_PARTITIONS, PARTITIONS

    shared = PARTITIONS | IMAGE_PARTITIONS
    holders = [d for d in DATASETS.values() if name in d.partitions]
    if name not in shared and not holders:
        return False
    out = console()
    if name in shared:
        _head(out, f"{name}: {shared[name].meaning}", "partition")
        _partition_options(out, "Options", shared[name])
        _line(out, f"Data sets that understand it: {', '.join(d.name for d in holders)}")
    else:
        _head(out, f"{name}: clients that a data set makes itself", "partition")
        for holder in holders:
            it = holder.partitions[name]
            _line(out, f"{holder.name}: {it.meaning}")
            if it.options:
                _partition_options(out, f"Options with {holder.name}", it)
    _line(out, f'In a config: data.partition = {{ name = "{name}" }}')
    return True


def _partition_options(out: Console, title: str, it: Partition) -> None:
    rows = [(key, _kind(o.default), _value(o.default), o.meaning) for key, o in it.options.items()]
    _options(out, title, rows)


def _show_preset(name: str) -> bool:
    values = catalogue.presets().get(name)
    if values is None:
        return False
    out = console()
    head = values.get("preset")
    if head is None:
        _head(out, f"{name}: {catalogue.opening(name)}", "packaged config")
        _text(out, catalogue.preset_text(name))
        _line(out, f"Run it: isonomy compare {name}")
        return True
    _head(out, f"{name}: {head['title']}", f"preset; {head['paper']}")
    _text(out, head["text"].strip())
    rows = []
    for e in values.get("expected", ()):
        if "values" in e:  # the preset's metrics, in each setting
            rows += [
                (e["method"], setting, metric, _value(number), "")
                for setting, numbers in e["values"].items()
                for metric, number in zip(head["metrics"], numbers, strict=True)
            ]
        else:
            note = e.get("note", "")
            rows.append((e["method"], e.get("setting", ""), e["metric"], _value(e["value"]), note))
    if rows:
        table(out, "The paper's numbers", ("method", "setting", "metric", "paper", "note"), rows)
    named = ("label", "setting", "series", "algorithm")
    methods = []
    for m in values["methods"]:
        changes = ", ".join(f"{k} = {_value(v)}" for k, v in m.items() if k not in named)
        methods.append((m["label"], m.get("setting", ""), _value(m["algorithm"]), changes))
    table(out, "What is run", ("method", "setting", "algorithm", "also"), methods)
    under = [
        (s["name"], ", ".join(f"{k} = {_value(v)}" for k, v in s.items() if k != "name"))
        for s in values.get("settings", ())
    ]
    if under:
        table(out, "Each of them under", ("setting", "changes"), under)
    usual = head.get("scale", "full")
    scales = {key: at["text"] for key, at in values.get("scale", {}).items()}
    scales["full"] = "The preset as it is."
    told = [(key + (" (default)" if key == usual else ""), text) for key, text in scales.items()]
    table(out, "Scales", ("scale", "what it is"), told)
    for text in head.get("notes", ()):
        _line(out, f"- {text}")
    _line(out, f"Run it: isonomy reproduce {name}")
    return True


def _show_config(name: str) -> bool:
    if name != "config":
        return False
    from pydantic import BaseModel

    from isonomy.config.schema import Config

    rows: list[tuple[str, ...]] = []

    def walk(model: type[BaseModel], prefix: str) -> None:
        for key, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                walk(kind, f"{prefix}{key}.")
            elif key != "versions":
                default = field.get_default(call_default_factory=True)
                rows.append((prefix + key, _value(default), field.description or ""))

    walk(Config, "")
    out = console()
    _head(out, "config: every key of an experiment's config", "a TOML file, or key=value")
    table(out, "Keys", ("key", "default", "meaning"), rows)
    _line(out, "Data sets, models and algorithms have options of their own: isonomy show NAME.")
    return True


def _show_run(name: str) -> bool:
    from pathlib import Path

    if not (Path(name) / "config.toml").is_file():
        return False
    from isonomy import api
    from isonomy.cli import output
    from isonomy.report.tables import verdict_table

    (record,) = api.load(name)[:1]
    output.put_one(record)
    output.put_verdict(record)
    found = verdict_table(record)
    if found is not None:
        output.put(found)
    return True


def _show_metric(name: str) -> bool:
    costs = ("seconds", "bytes", "bytes.down", "bytes.up")
    if "." not in name and name not in (
        "accuracy",
        "loss",
        "faa",
        "excess",
        "hypervolume",
        "hv",
        *costs,
    ):
        return False
    from isonomy.metrics import parse

    metric = parse(name)
    out = console()
    way = metric.better
    _head(out, name, "metric" + (f"; {way} is better" if way else ""))
    _text(out, metric.meaning())
    return True


_PAGES = (
    _show_run,
    _show_algorithm,
    _show_data,
    _show_model,
    _show_attack,
    _show_defence,
    _show_preset,
    _show_config,
    _show_metric,
)


# --- printing ------------------------------------------------------------------------------------


def _head(out: Console, title: str, below: str) -> None:
    from rich.text import Text

    out.print()
    out.print(Text(title, style="bold"))
    out.print(Text(below, style="dim"))
    out.print()


def _text(out: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding(Text(text), (0, 0, 0, 2)) if out.is_terminal else Text(text))
    out.print()


def _line(out: Console, text: str) -> None:
    from rich.text import Text

    out.print(Text(text))


def _options(out: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    if rows:
        table(out, title, ("name", "holds", "default", "meaning"), rows)
    else:
        _line(out, f"{title}: none")
        out.print()


def table(out: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; a terminal's width wraps the last ones, a pipe's does not."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, head in enumerate(heads):
        grid.add_column(head, no_wrap=i == 0, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style="cyan" if i == 0 else "") for i, cell in enumerate(row)))
    out.print(grid)


def _shown(options: Sequence[catalogue.Option]) -> str:
    """A first option with its default, as TOML, for an example."""
    for option in options:
        number = option.kind in ("number", "whole number")
        if number or " or " in option.kind:
            value = option.default if number else f'"{option.default}"'
            return f", {option.name} = {value}"
    return ""


def _kind(default: Any) -> str:
    """What an option holds, told by its default."""
    if isinstance(default, tuple):
        return "list"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return "table" if isinstance(default, dict) else names.get(type(default), "")


def _value(value: Any) -> str:
    """A value as a config would hold it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
