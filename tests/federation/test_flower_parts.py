"""The Flower engine's parts by themselves: bytes, checks, stores, names, addresses, keys, gate."""

from __future__ import annotations

import contextlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.participants import CONFIG, NAMES, write_tables
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.preference.praffl import PraFFL
from isonomy.core import tree
from isonomy.errors import ConfigError
from isonomy.federation.flower import codec, superlink
from isonomy.federation.flower.phase_runner import AlgorithmPhases
from isonomy.federation.flower.state_store import StateStore
from isonomy.federation.flower.superlink import loopback_only, parse
from isonomy.runs.client_counts import measure
from isonomy.runs.measurements import measurement


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


TREE = {
    "w": torch.randn(3, 2),
    "deep": [Pair(torch.arange(4), torch.tensor(True)), (torch.zeros(0, 2), torch.ones(()))],
    "none": (),
}


def test_a_tree_comes_back_in_the_same_bits() -> None:
    head, back = codec.unpack(codec.pack({"round": 3, "rate": 0.1}, TREE), TREE)
    assert head == {"round": 3, "rate": 0.1}
    for a, b in zip(tree.leaves(TREE), tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert isinstance(back["deep"][0], Pair)


def test_a_message_is_hardly_larger_than_its_numbers() -> None:
    for numbers, overhead in ((10_000, 0.05), (100_000, 0.005)):
        params = {"linear1.weight": torch.zeros(numbers // 10, 10), "linear1.bias": torch.zeros(10)}
        size = len(codec.pack({"kind": "phase", "phase": "local"}, {"params": params}))
        assert size < (1 + overhead) * tree.nbytes(params)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_malformed(content: bytes) -> None:
    with pytest.raises(codec.MalformedError):
        codec.unpack(content)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_message_is_read_or_malformed_and_nothing_else(at: int, byte: int) -> None:
    content = bytearray(codec.pack({"ok": True}, {"w": torch.ones(4)}))
    content[at % len(content)] = byte
    with contextlib.suppress(codec.MalformedError):
        codec.unpack(bytes(content), {"w": torch.ones(4)})


def test_no_structure_but_the_expected_one_is_taken_apart() -> None:
    with pytest.raises(codec.MalformedError, match="other parts"):
        codec.unpack(codec.pack({}, {"w": torch.ones(2)}), {"v": torch.ones(2)})
    deep: object = torch.ones(1)
    for _ in range(100):
        deep = [deep]
    with pytest.raises(codec.MalformedError):
        codec.unpack(codec.pack({}, deep))


def test_the_most_that_a_reply_may_take_leaves_room_for_its_description() -> None:
    like = {f"layer{i}.weight": torch.zeros(100) for i in range(50)}
    assert len(codec.pack({"ok": True}, like)) < codec.most(like)


@pytest.mark.parametrize(
    "name",
    [
        "round",
        "_x",
        "__init__",
        "predict",
        "nothing",
        "measure:all",
        "measure:test:own",
        "measure:test:given",
    ],
)
def test_a_message_cannot_run_what_is_no_phase(name: str) -> None:
    with pytest.raises(KeyError):
        AlgorithmPhases(FedAvg(), measurement).find(name)


def test_phases_are_known_by_name() -> None:
    known = AlgorithmPhases(FedAvg(), measurement)
    assert known.name(FedAvg().local) == "local"
    assert known.name(measure(FedAvg(), "test")) == "measure:test"
    front = AlgorithmPhases(PraFFL(), measurement)
    assert front.name(front.find("measure:test:own")) == "measure:test:own"
    assert known.find("local").__func__ is FedAvg.local  # type: ignore[attr-defined]


def test_a_store_goes_back_and_forgets(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "state"):
        store = StateStore({"w": torch.zeros(2)}, folder)
        for r in range(6):
            store.save(r, {"w": torch.full((2,), float(r))})
        again = store if folder is None else StateStore({"w": torch.zeros(2)}, folder)
        assert again.load()["w"].tolist() == [5, 5]
        again.rewind(4)  # the server has done 4 rounds: 0 to 3
        assert again.load()["w"].tolist() == [3, 3]
        again.forget_before(3)  # it can go back to 3 rounds: the state after round 2 is needed
        assert again.rounds() == [2, 3]
        again.rewind(0)
        assert again.load()["w"].tolist() == [0, 0]


@pytest.mark.parametrize("address", ["127.0.0.1:80", "localhost:9092", "[::1]:9092", "127.3.2.1:1"])
def test_in_the_clear_on_this_machine(address: str) -> None:
    loopback_only(address)


@pytest.mark.parametrize("address", ["0.0.0.0:9092", "10.0.0.4:9092", "example.org:80", "[::]:90"])
def test_in_the_clear_nowhere_else(address: str) -> None:
    with pytest.raises(ConfigError, match="this machine only"):
        loopback_only(address)


@pytest.mark.parametrize("address", ["9092", "host", "host:", "host:99999", ":80"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse(address)


def test_keys(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    import ssl

    from isonomy.federation.flower import keys

    made = keys.make(tmp_path / "keys", ["north", "south"], ["10.1.2.3", "host.example"])
    names = {path.name for path in made}
    assert names == {
        "ca.crt",
        "server.crt",
        "server.key",
        "north",
        "north.pub",
        "south",
        "south.pub",
    }
    for secret in ("server.key", "north", "south"):
        assert stat.S_IMODE((tmp_path / "keys" / secret).stat().st_mode) == 0o600
    context = ssl.create_default_context(cafile=str(tmp_path / "keys/ca.crt"))
    context.load_cert_chain(tmp_path / "keys/server.crt", tmp_path / "keys/server.key")
    with pytest.raises(ConfigError, match="already"):
        keys.make(tmp_path / "keys", ["north"])
    for wrong in (["a/b"], ["ca"], ["x", "x"]):
        with pytest.raises(ConfigError):
            keys.make(tmp_path / "others", wrong)


def test_no_flower_module_is_needed_for_what_tests_use() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import isonomy.federation.flower.engine, isonomy.federation.flower.superlink; "
        "import isonomy.federation.flower.connection, isonomy.federation.organiser; "
        "import isonomy.federation.participant, json; "
        "print(json.dumps([m for m in sys.modules if m.startswith('flwr')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_what_carries_messages_imports_neither_torch_nor_numpy() -> None:
    pytest.importorskip("flwr")
    import subprocess
    import sys

    code = (
        "import sys; import flwr.clientapp; before = set(sys.modules); "
        "import isonomy.federation.flower.message_content, json; "
        "print(json.dumps(sorted(m for m in set(sys.modules) - before if m.split('.')[0] in "
        "('torch', 'pyarrow', 'pandas', 'safetensors', 'scipy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "x.toml"], "--keys FOLDER"),
        (["serve", "x.toml", "--keys", "nowhere"], "has no ca.crt"),
        (["serve", "x.toml", "--insecure"], "this machine only"),
        (["serve", "--insecure", "--address", "127.0.0.1:9092"], "or --resume RUN"),
        (["join", "--server", "h:1", "--data", "t.csv"], "--key is missing"),
        (["join", "--server", "h:1", "--data", "t.csv", "--insecure"], "--name north"),
        (["keys", "a/b"], "cannot be a client's name"),
    ],
)
def test_what_the_command_line_refuses(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from typer.testing import CliRunner

    from isonomy.cli import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert not list(tmp_path.iterdir())


def test_serve_that_is_interrupted_before_training_names_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from typer.testing import CliRunner

    from isonomy.cli import app
    from isonomy.federation import organiser

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(superlink, "running", interrupted)
    write_tables(tmp_path / "tables", NAMES)
    (tmp_path / "trial.toml").write_text(CONFIG)
    where = ["--insecure", "--address", "127.0.0.1:9092"]
    words = ["serve", "trial.toml", "--to", "run", *where, "--clients", ",".join(NAMES)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130, done.output
    assert "Stopped; continue with `isonomy serve --resume run`, with the --keys" in done.output
    assert organiser.reopen(tmp_path / "run").names == list(NAMES)


def test_a_config_that_is_of_no_tables_is_refused(tmp_path: Path) -> None:
    from isonomy.config.schema import parse as config
    from isonomy.federation import organiser

    with pytest.raises(ConfigError, match=r"data\.name = 'synthetic'.*data\.path"):
        organiser.begin(config({"data": "synthetic"}), tmp_path / "run", ["a"])
    assert not (tmp_path / "run").exists()


def test_a_reply_counts_though_its_sender_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 7 answers and goes at once, node 8 goes without an answer."""
    pytest.importorskip("flwr")
    from isonomy.federation.flower import server_app
    from isonomy.federation.flower.message_content import record_of

    class Grid:
        looks = 0

        def push_messages(self, messages: list[object]) -> list[str]:
            return ["a", "b"]

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return []

        def pull_messages(self, keys: list[str]) -> list[object]:
            if "a" not in keys or not self.looks:
                return []
            about = SimpleNamespace(reply_to_message_id="a")
            made = SimpleNamespace(metadata=about, content=record_of(b"here"))
            made.has_error = lambda: False
            return [made]

    monkeypatch.setattr(server_app, "Message", SimpleNamespace)  # the real one asks for a run
    monkeypatch.setattr(server_app, "CHECK_NODES", 0.0)
    monkeypatch.setattr(server_app, "PAUSE", 0.01)
    order = {"seconds": 5, "type": "query", "group": 0, "to": [[7, 0], [8, 0]]}
    got = list(server_app.exchange(Grid(), order, [b"?"]))  # type: ignore[arg-type]
    assert got == [(7, "", b"here"), (8, "it has left", b"")]


def test_a_port_is_looked_for_at_the_host_that_was_given(tmp_path: Path) -> None:
    """A server at 127.0.0.2 does not listen at 127.0.0.1."""
    import socket

    from isonomy.errors import RunError
    from isonomy.federation.flower.processes import wait_for_port

    child: Any = SimpleNamespace(running=False, output=lambda: "nothing", log=tmp_path / "log")
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        wait_for_port(port, child, "the gateway", "127.0.0.2", seconds=5.0)
        with pytest.raises(RunError, match="did not start"):
            wait_for_port(port, child, "the gateway", "127.0.0.1", seconds=5.0)


def test_the_folder_of_a_participant_is_its_owners_alone(tmp_path: Path) -> None:
    """Personal models and states are in it."""
    from isonomy.federation.flower.connection import locked

    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    with locked(home):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_answers_of_flower_have_no_colours(monkeypatch, tmp_path):
    """Notebooks and CI systems ask every program for colours; Flower prints its JSON with rich."""
    from isonomy.federation.flower.processes import environment

    script = "import rich; rich.print_json('{\"success\": true}')"
    command = [sys.executable, "-c", script]
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    coloured = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\x1b[" in coloured
    env = environment(tmp_path)
    plain = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert json.loads(plain) == {"success": True}
