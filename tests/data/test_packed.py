"""Packed data are the data that were packed."""

import pytest
import torch

from isonomy.data.datasets import load, parts
from isonomy.data.federation import Federation
from isonomy.data.packed import open_packed, pack
from isonomy.data.tables.federate import fingerprint
from isonomy.errors import ConfigError, DataError


def same(a, b):
    assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("x", "y", "groups", "ranges"))
    for name in ("classes", "attributes", "labels", "features", "source", "clusters", "notes"):
        assert getattr(a, name) == getattr(b, name)
    assert list(a.names) == list(b.names)


def test_a_federation_is_read_as_it_was_packed(tmp_path):
    given = load("synthetic", clients=4, seed=2)
    same(pack(given, tmp_path / "a"), given)
    found = open_packed(tmp_path / "a")
    same(found, given)
    found.pages.fetch(found.ranges[1:3])
    found.pages.release()
    same(found, given)  # pages are read again
    assert fingerprint(found) == found.digest != fingerprint(given)


def test_safetensors_reads_the_files(tmp_path):
    from safetensors.torch import load_file

    given = pack(load("synthetic", clients=3), tmp_path / "a")
    for name in ("x", "y", "groups", "ranges"):
        assert torch.equal(
            load_file(tmp_path / "a" / f"{name}.safetensors")[name], getattr(given, name)
        )


def test_some_clients_in_another_order(tmp_path):
    given = load("synthetic", clients=5).only([3, 0])
    found = pack(given, tmp_path / "a")
    assert list(found.names) == ["client 3", "client 0"]
    for k in (0, 1):
        for split in ("train", "validation", "test"):
            assert torch.equal(found.x[found.rows(k, split)], given.x[given.rows(k, split)])
    assert found.x.shape[0] == int((given.ranges[..., 1] - given.ranges[..., 0]).sum())


def test_devices_are_the_same_in_parts_and_in_any_number(tmp_path):
    options = {"features": 3, "largest": 40}
    given = load("devices", clients=2300, options=options)
    same(pack(parts("devices", clients=2300, options=options), tmp_path / "a"), given)
    few = load("devices", clients=1200, options=options)
    rows = int(few.ranges[-1, -1, 1])
    assert torch.equal(given.x[: int(few.ranges[999, -1, 1])], few.x[: int(few.ranges[999, -1, 1])])
    assert torch.equal(given.ranges[:1200], few.ranges)
    assert few.x.shape[0] == rows
    sizes = given.ranges[:, -1, 1] - given.ranges[:, 0, 0]
    assert int(sizes.min()) == 10
    assert int(sizes.max()) <= 40
    share = float((sizes < 20).double().mean())  # P(size < 20) = (1/10 - 1/20) / (1/10 - 1/41)
    assert share == pytest.approx((1 / 10 - 1 / 20) / (1 / 10 - 1 / 41), abs=0.03)


def test_what_is_refused(tmp_path):
    given = load("synthetic", clients=3)
    other = Federation.from_tensors(torch.zeros(9, 2), [0, 1, 2] * 3, [0] * 9)
    with pytest.raises(DataError, match="different classes"):
        pack([given, other], tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []
    pack(given, tmp_path / "a")
    with pytest.raises(DataError, match="not empty"):
        pack(given, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"data\.clients is set"):
        load("packed", clients=3, options={"path": str(tmp_path / "a")})
    with open(tmp_path / "a" / "y.safetensors", "ab") as file:
        file.truncate(300)
    with pytest.raises(DataError, match="no complete packed data"):
        open_packed(tmp_path / "a")
    with pytest.raises(DataError, match="no complete packed data"):
        load("packed", options={"path": str(tmp_path / "nowhere")})
