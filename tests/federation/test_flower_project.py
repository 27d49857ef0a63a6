"""Both apps in a Flower project of one's own, as docs/federation.md shows it, by `flwr run`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation.real import Place, model, own, same, simulate
from isonomy.core import tree
from isonomy.federation.flower import processes
from isonomy.runs.folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs" / "federation.md"
NAMES = ("north", "south")


def lay_out(place: Place) -> Path:
    """The files that the guide shows, with this test's paths in them."""
    text = DOCS.read_text()
    text = text[text.index("## In your own Flower project") :]
    python, toml = (
        re.findall(f"```{kind}\n(.*?)```", text, re.S)[0] for kind in ("python", "toml")
    )
    project = place.folder / "project"
    (project / "app").mkdir(parents=True)
    (project / "app" / "__init__.py").write_text("")
    for file in python.split("# app/")[1:]:
        name, content = file.split("\n", 1)
        (project / "app" / name.strip()).write_text(content)
    toml = toml.replace("/srv/trial.toml", str(place.folder / "config.toml"))
    toml = toml.replace("/srv/runs/trial", str(place.run))
    (project / "pyproject.toml").write_text(toml)
    return project


@pytest.mark.slow
def test_the_project_in_the_guide(tmp_path: Path) -> None:
    with Place(tmp_path, NAMES, rounds=1) as place:
        changed = (tmp_path / "config.toml").read_text().replace("rounds = 3", "rounds = 1")
        changed = changed.replace('"tables"', f'"{tmp_path / "tables"}"')
        (tmp_path / "config.toml").write_text('algorithm = "fmtl"\n' + changed)
        project, home = lay_out(place), tmp_path / "flower"
        processes.write_home(home, place.address, None)
        env = processes.environment(home)
        port = place.address.rpartition(":")[2]
        link = [processes.program("flower-superlink"), "--insecure", "--host", "127.0.0.1"]
        link += ["--port", port, "--disable-runtime-dependency-installation"]
        place.start("superlink", *link, env=env)
        place.until("the SuperLink listens", lambda: "running" in place.said("superlink").lower())
        for name in NAMES:
            given = f'name="{name}" data="{tmp_path}/tables/{name}.csv" '
            given += f'home="{tmp_path}/homes/{name}" agree=true cell=1 exact=true'
            node = [processes.program("flower-supernode"), "--insecure", "--superlink"]
            node += [place.address, "--host", "127.0.0.1", "--port", str(processes.free_port())]
            place.start(name, *node, "--node-config", given, env=env)
        run = [processes.program("flwr"), "run", str(project), processes.CONNECTION, "--stream"]
        place.start("flwr", *run, env=env)
        assert place.ends("flwr") == 0, place.logs()
        assert RunFolder(place.run).complete, place.logs()
        expected = model(simulate(place))
        same(model(place.run)["server"], expected["server"])
        for k, name in enumerate(NAMES):
            same(tree.take(own(place, name)["clients"], 0), tree.take(expected["clients"], k))


def test_why_secure_aggregation_is_not_used() -> None:
    """docs/federation.md says so; when this fails, Flower has it for the messages used here."""
    import flwr.clientapp.mod
    import flwr.serverapp.strategy
    from flwr.app import Context, RecordDict
    from flwr.server.workflow import SecAggPlusWorkflow

    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):
        workflow(None, context)  # type: ignore[arg-type]
    names = [*flwr.clientapp.mod.__all__, *flwr.serverapp.strategy.__all__]
    assert not [name for name in names if "secagg" in name.lower()]
