"""`isonomy front`: what is printed, drawn and refused."""

from __future__ import annotations

import pytest

import isonomy

BASE = {
    "rounds": 1,
    "data": {"name": "synthetic", "examples": 300, "clients": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"epochs": 1, "batch": 64},
    "evaluate": {"bootstrap": 0},
    "excess": {"clusters": "none"},
    "front": {"rays": 10},
    "engine": "loop",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    method = {"name": "hetpfl", "fusion_steps": 2, "preferences": 2, "shown": 20, "select": 0}
    for name, algorithm in (("front", method), ("point", "fedavg")):
        made[name] = tmp_path_factory.mktemp("front") / name
        isonomy.run(isonomy.make_config(**BASE, algorithm=algorithm), made[name])
    return made


def test_front(cli, folders, tmp_path):
    page = tmp_path / "drawn.html"
    done = cli("front", str(folders["front"]), "--max-dp", "1", "--out", str(page))
    lines = done.stdout.splitlines()
    for who in ("all clients", "client 0", "client 1"):
        assert any(line.startswith(who) for line in lines)
    record = isonomy.load(folders["front"])[0]
    assert f"{record.metrics['hv.global']:.3f}" in done.stdout
    assert "dp.z against error, all clients" in done.stdout
    assert "preference" in done.stdout
    assert any("o" in line for line in lines if "|" in line)
    assert page.read_text().startswith("<!DOCTYPE html>")
    none = cli("front", str(folders["front"]), "--at-most", "error=0", "--client", "client 1")
    assert "none within the limit" in none.stdout
    assert "dp.z against error, client 1" in none.stdout
    assert (folders["front"] / "front.html").exists()


def test_a_front_of_one_point(cli, folders):
    assert "dp.z against error, all clients" in cli("front", str(folders["point"])).stdout


def test_refused(cli, folders):
    for arguments, words in (
        (["--client", "nobody"], "unknown client"),
        (["--at-most", "dp.z"], "NAME=VALUE"),
        (["--at-most", "odds=0.1"], "unknown coordinate"),
        (["--max-dp", "-0.1"], "dp = -0.1 cannot be met"),
    ):
        done = cli("front", str(folders["front"]), *arguments, code=2)
        assert words in done.stderr
    point = cli("front", str(folders["point"]), "--max-dp", "0.1", code=2)
    assert len(point.stderr.splitlines()) == 1
