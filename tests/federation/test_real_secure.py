"""Secure aggregation with real processes over loopback, with TLS, keys and signed masks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from federation.real import Place, check_equal_to_loop, model, simulate
from federation.uniformity import p_values, two_samples
from isonomy.core import tree
from isonomy.federation.flower import codec

PROGRAM = Path(__file__).with_name("secure_process.py")
THREE = ("east", "north", "south")


class SecurePlace(Place):
    """A federation whose processes may be changed."""

    def changed(self, name: str, change: str, *words: str, **env: str) -> subprocess.Popen:
        command = (sys.executable, str(PROGRAM), change, *words)
        return self.start(name, *command, env={**os.environ, **env})

    def kept(self) -> list[torch.Tensor]:
        paths = sorted((self.folder / "kept").iterdir())
        return [codec.unpack(path.read_bytes())[1]["masked"] for path in paths]


def test_two_participants_equal_the_loop_engine(tmp_path: Path) -> None:
    """The sum of masked replies gives the bytes of the simulation, and plain ones within a step."""
    changes = {"secure": "true", "rounds": 1, "evaluate.every": 1}
    with SecurePlace(tmp_path, ("east", "north"), **changes) as place:
        check_equal_to_loop(place)
    served, simulated = (model(tmp_path / name)["server"] for name in ("run", "simulated"))
    for a, b in zip(tree.leaves(served), tree.leaves(simulated), strict=True):
        assert torch.equal(a, b)
    assert "only sums of replies, by secure aggregation" in place.said("east")
    assert "north SHA256:" in place.said("east")
    shutil.rmtree(tmp_path / "simulated")
    place.overrides = ["rounds=1"]
    plain = model(simulate(place))["server"]
    for a, b in zip(tree.leaves(served), tree.leaves(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=16 / 2**31)


@pytest.mark.slow
def test_a_participant_that_is_killed_after_masking_is_in_the_sum(tmp_path: Path) -> None:
    """SIGKILL between its masked reply and the removal of masks, in the last of two rounds."""
    with SecurePlace(tmp_path, THREE, secure="true", rounds=2) as place:
        place.timeout = 60
        place.serve()
        for name in THREE[:2]:
            place.join(name)
        place.may_fail.add("south")
        place.changed("south", "die", "join", *place.joining("south"), SECURE_SLOT="1")
        assert place.ends("organiser") == 0, place.logs()
        assert place.processes["south"].poll() == -9
        lines = place.rounds()
        assert [line["answered"] for line in lines] == [3, 3]
        said = " ".join(place.said("organiser").split())
        assert "round 2: 'south' sent its masked reply to 'local' and nothing after it" in said
        served, simulated = model(place.run), model(simulate(place))
    for a, b in zip(tree.leaves(served["server"]), tree.leaves(simulated["server"]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_fewer_than_the_threshold_end_a_round_with_a_sentence(tmp_path: Path) -> None:
    """Two of three are killed; the run ends by itself, and the model stays as it was."""
    with SecurePlace(tmp_path, THREE, secure="true", rounds=60) as place:
        place.timeout = 30
        place.serve()
        for name in THREE:
            place.join(name)
        place.until("a round is done", lambda: len(place.rounds()) >= 1)
        place.may_fail |= {"north", "south"}
        place.crash("north")
        place.crash("south")
        place.until("it is said", lambda: "that a secure sum needs" in place.said("organiser"))
        place.until("a round more is done", lambda: "no_sum" in place.rounds()[-1])
        assert "fewer than the 2 that a secure sum needs; the exchange changes nothing" in " ".join(
            place.said("organiser").split()
        )
        assert place.processes["organiser"].poll() is None
        assert place.processes["east"].poll() is None


def run_kept(folder: Path, change: str, **changes: object) -> SecurePlace:
    """A run of one round whose masked replies are kept as they arrive."""
    given = {"secure": "true", "rounds": 1, "model.hidden": "[400]", **changes}
    with SecurePlace(folder, THREE, **given) as place:
        (folder / "kept").mkdir()
        place.changed("organiser", change, *place.serving(), SECURE_KEEP=str(folder / "kept"))
        for name in THREE:
            if "bare" in change:
                place.changed(name, "bare", "join", *place.joining(name))
            else:
                place.join(name)
        assert place.ends("organiser") == 0, place.logs()
        for name in THREE:
            assert place.ends(name) == 0, place.logs()
    return place


@pytest.mark.slow
def test_what_arrives_tells_nothing_about_a_reply(tmp_path: Path) -> None:
    """Masked replies on the wire, for two different replies of 'east'; then with masks off."""
    honest = run_kept(tmp_path / "honest", "keep").kept()
    flipped = {"attack": "sign_flip", "attack.clients": "[0]", "attack.factor": 50.0}
    other = run_kept(tmp_path / "other", "keep", **flipped).kept()
    for vectors in (honest, other):
        assert len(vectors) == 3
        for one in vectors:
            assert min(p_values([one])) > 1e-5
    assert two_samples(honest, other) > 1e-5
    bare = run_kept(tmp_path / "bare", "keep+bare").kept()
    assert all(min(p_values([one])) < 1e-12 for one in bare)
    assert two_samples(honest, bare) < 1e-12
