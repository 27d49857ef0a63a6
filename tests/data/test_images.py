import gzip
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from isonomy.data import images
from isonomy.data.dataset import Request, check_facts
from isonomy.data.images import About, Images, federate, parse_idx, read_idx, rotate, subset
from isonomy.data.partition import plan
from isonomy.errors import ConfigError, DataError

ABOUT = About("Small", "small", ("a", "b", "c"), 60, 30, (0.25,), (0.5,))


TURNED = {"name": "rotations", "degrees": [0, 90, 180], "counts": [2, 2, 1]}


def small(train=60, test=30, channels=1, side=4) -> Images:
    """Every image is told by its pixels: row number in the first, others random."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (train + test, channels, side, side), dtype=np.uint8)
    pixels[:, 0, 0, 0] = np.arange(train + test)
    return Images(pixels, np.arange(train + test) % 3, train)


def request(partition="iid", clients=3, seed=0, **options) -> Request:
    known = {name: option.default for name, option in images.OPTIONS.items()}
    return Request(clients, seed, *plan(partition, images.UNDERSTOOD), {**known, **options})


# --- turning -------------------------------------------------------------------------------------


def test_quarter_turns_are_exact_and_counter_clockwise():
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    #  0 1 2        2 5 8        8 7 6
    #  3 4 5   90:  1 4 7  180:  5 4 3
    #  6 7 8        0 3 6        2 1 0
    assert rotate(x, 90).flatten().tolist() == [2, 5, 8, 1, 4, 7, 0, 3, 6]
    assert rotate(x, 180).flatten().tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert torch.equal(rotate(x, 270), rotate(rotate(x, 90), 180))
    assert torch.equal(rotate(x, -90), rotate(x, 270))
    assert torch.equal(rotate(x, 450), rotate(x, 90))
    assert torch.equal(rotate(x, 0), x)


@pytest.mark.parametrize("side", [5, 8, 28])
def test_other_angles_turn_the_same_way(side):
    """The two ways of turning meet at the quarter turns."""
    x = torch.rand(3, 2, side, side)
    for degrees in (0, 90, 180, 270):
        torch.testing.assert_close(
            images._between(x, degrees), rotate(x, degrees), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("degrees", [-170.0, -30.0, 1.0, 45.0, 60.0, 133.0])
def test_other_angles_against_another_library(degrees):
    x = torch.rand(2, 1, 21, 21)
    theirs = ndimage.rotate(
        x.numpy(), degrees, axes=(-2, -1), order=1, reshape=False, mode="constant", cval=0.0
    )
    ours = rotate(x, degrees).numpy()
    # at the rim the other library has zeros where a neighbour is missing; inside they agree
    row, column = np.mgrid[-10:11, -10:11]
    inside = np.hypot(row, column) < 9.5
    np.testing.assert_allclose(ours[..., inside], theirs[..., inside], atol=1e-4)


def test_zeros_outside():
    out = rotate(torch.ones(1, 1, 20, 20), 45)
    assert float(out[0, 0, 0, 0]) == 0
    assert float(out[0, 0, 10, 10]) == pytest.approx(1)
    assert float(out.max()) <= 1 + 1e-5


def test_by_hand_45_degrees():
    """A point above the centre of 3 x 3 goes up and left, a root of two away from any pixel."""
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 0, 1] = 1
    out = rotate(x, 45)[0, 0]
    # the upper left pixel looks back to (-sqrt 2, 0) in rows: outside by 0.414 of a pixel
    assert float(out[0, 0]) == pytest.approx(1 - (math.sqrt(2) - 1), abs=1e-5)
    assert float(out[0, 2]) == pytest.approx(0, abs=1e-5)
    assert float(out[1, 1]) == pytest.approx(0, abs=1e-5)


def test_only_square_images_are_turned():
    with pytest.raises(DataError, match="images of 2 by 3 pixels cannot be rotated"):
        rotate(torch.zeros(1, 1, 2, 3), 90)


# --- federations ---------------------------------------------------------------------------------


def test_rows_pixels_and_labels_belong_together():
    all_ = small()
    made = federate(ABOUT, all_, request(validation=0.2))
    assert made.x.dtype == torch.float32
    assert made.x.shape == (90, 1, 4, 4)
    at = (made.x[:, 0, 0, 0] * 255).round().long()
    assert sorted(at.tolist()) == list(range(90))
    torch.testing.assert_close(made.x, torch.from_numpy(all_.pixels[at.numpy()]).float() / 255)
    assert torch.equal(made.y, at % 3)
    assert made.sizes("train").tolist() == [16] * 3
    assert made.sizes("validation").tolist() == [4] * 3
    assert made.sizes("test").tolist() == [10] * 3
    for k in range(3):
        assert bool((at[made.rows(k, "train")] < 60).all())
        assert bool((at[made.rows(k, "validation")] < 60).all())
        assert bool((at[made.rows(k, "test")] >= 60).all())
    assert made.labels == ("a", "b", "c")
    assert made.classes == 3
    assert made.groups.shape == (90, 0)
    assert made.clusters is None


def test_clusters_see_turned_images():
    all_ = small()
    chosen = {"name": "rotations", "degrees": [0, 90, 30], "counts": [1, 2, 1]}
    made = federate(ABOUT, all_, request(chosen, clients=0, validation=0.0))
    plain = federate(ABOUT, all_, request("iid", clients=4, validation=0.0))
    assert made.clusters == (0, 1, 1, 2)
    assert torch.equal(made.ranges, plain.ranges)
    for k, angle in enumerate((0, 90, 90, 30)):
        for split in ("train", "test"):
            rows = made.rows(k, split)
            assert rows.stop > rows.start
            torch.testing.assert_close(made.x[rows], rotate(plain.x[rows], angle))
            assert torch.equal(made.y[rows], plain.y[rows])


def test_a_rotation_larger_than_a_block(monkeypatch):
    whole = federate(ABOUT, small(), request(TURNED, clients=0, validation=0.0))
    monkeypatch.setattr(images, "_BLOCK", 4)
    pieces = federate(ABOUT, small(), request(TURNED, clients=0, validation=0.0))
    assert torch.equal(whole.x, pieces.x)


def test_normalised_after_the_turn():
    plain = federate(ABOUT, small(), request(TURNED, clients=0, validation=0.0))
    scaled = federate(ABOUT, small(), request(TURNED, clients=0, validation=0, normalise=True))
    torch.testing.assert_close(scaled.x, (plain.x - 0.25) / 0.5)
    colours = About("Small", "small", ("a", "b", "c"), 60, 30, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0))
    made = [federate(colours, small(channels=3), request(normalise=n)).x for n in (False, True)]
    for channel in range(3):
        mean, deviation = colours.mean[channel], colours.deviation[channel]
        torch.testing.assert_close(made[1][:, channel], (made[0][:, channel] - mean) / deviation)


def test_each_pixel_by_its_own_moments():
    """Of the training images kept, with a thousandth of a grey level added to deviations."""
    all_ = small()
    plain = federate(ABOUT, all_, request(validation=0.0))
    scaled = federate(ABOUT, all_, request(validation=0.0, pixelwise=True))
    train = all_.pixels[:60] / 255.0
    mean, deviation = train.mean(0), train.std(0) + 0.001 / 255
    expected = (plain.x.double() - torch.from_numpy(mean)) / torch.from_numpy(deviation)
    torch.testing.assert_close(scaled.x.double(), expected, rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match="both"):
        federate(ABOUT, all_, request(pixelwise=True, normalise=True))


def test_a_client_for_each_label():
    made = federate(ABOUT, small(), request({"name": "column", "column": "label"}, clients=0))
    assert made.names == ("a", "b", "c")
    for k in range(3):
        for split in ("train", "test"):
            assert set(made.y[made.rows(k, split)].tolist()) == {k}


def test_the_same_seed_gives_the_same_and_another_does_not():
    one, two, three = (
        federate(ABOUT, small(), request("dirichlet", seed=s, examples=80)) for s in (1, 1, 2)
    )
    assert torch.equal(one.x, two.x)
    assert not torch.equal(one.x, three.x)


@settings(max_examples=60)
@given(
    train=st.integers(5, 60),
    test=st.integers(1, 30),
    share=st.floats(0.05, 1),
    seed=st.integers(0, 2**40),
)
def test_a_subset_keeps_proportions(train, test, share, seed):
    all_ = small(train, test)
    count = max(1, int(share * (train + test)))
    rows = subset(all_, count, seed)
    assert len(rows) == len(set(rows.tolist())) == count
    assert rows.tolist() == sorted(rows.tolist())
    for label in range(3):
        for part in (np.arange(train), np.arange(train, train + test)):
            there = part[all_.labels[part] == label]
            kept = np.isin(there, rows).sum()
            assert abs(kept - len(there) * count / (train + test)) < 1
    assert np.array_equal(rows, subset(all_, count, seed))


def test_subsets_of_other_sizes():
    assert subset(small(), 0, 3).tolist() == list(range(90))
    assert subset(small(), 90, 3).tolist() == list(range(90))
    fewer, more = set(subset(small(), 30, 3).tolist()), set(subset(small(), 60, 3).tolist())
    assert fewer < more
    for count in (-1, 91):
        with pytest.raises(ConfigError, match="1 to 90, or 0 for all"):
            subset(small(), count, 3)


# --- files ---------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    arrays = [
        rng.integers(0, 256, (7, 5, 5), dtype=np.uint8),
        rng.integers(0, 3, 7, dtype=np.uint8),
        rng.integers(0, 256, (4, 5, 5), dtype=np.uint8),
        rng.integers(0, 3, 4, dtype=np.uint8),
    ]
    paths = [tmp_path / name for name in images.IDX_NAMES]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(gzip.compress(idx(array)))
    return paths, arrays


def test_idx_files_gzipped_or_not(files):
    paths, arrays = files
    for path, array in zip(paths, arrays, strict=True):
        assert np.array_equal(read_idx(path), array)
        path.write_bytes(idx(array))
        assert np.array_equal(read_idx(path), array)
    made = parse_idx(paths)
    assert made.train == 7
    assert np.array_equal(made.pixels[:, 0], np.concatenate([arrays[0], arrays[2]]))
    assert np.array_equal(made.labels, np.concatenate([arrays[1], arrays[3]]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: gzip.compress(raw)[:-20],
        lambda raw: gzip.compress(raw)[:40] + b"xxxx" + gzip.compress(raw)[44:],
        lambda raw: raw[:-1],
        lambda raw: raw + b"x",
        lambda raw: b"\x00\x00\x0b" + raw[3:],
        lambda raw: raw[:6],
        lambda raw: b"",
        lambda raw: b"<html>not found</html>",
    ],
)
def test_damaged_idx_files(files, damage):
    paths, arrays = files
    paths[0].write_bytes(damage(idx(arrays[0])))
    with pytest.raises(DataError, match="get a complete copy") as error:
        parse_idx(paths)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_files_that_do_not_belong_together(files):
    paths, arrays = files
    with pytest.raises(DataError, match="has 1 dimensions, not 3"):
        parse_idx([paths[1], paths[0], paths[2], paths[3]])
    with pytest.raises(DataError, match="contains 4 labels for 7 images"):
        parse_idx([paths[0], paths[3], paths[2], paths[3]])
    paths[2].write_bytes(idx(arrays[2][:, :4]))
    with pytest.raises(DataError, match="images of different sizes"):
        parse_idx(paths)
    with pytest.raises(DataError, match="No such file"):
        read_idx(paths[0].with_name("nothing"))


def test_facts_count_what_is_there():
    all_ = small()
    level = all_.pixels[:60] / 255
    right = About(
        "Small", "small", ("a", "b", "c"), 60, 30, (float(level.mean()),), (float(level.std()),)
    )
    check_facts("Small", [*images.facts(right, all_), *images.balance(right, all_)])
    with pytest.raises(DataError, match="it has 60 training images instead of 61"):
        check_facts(
            "Small", images.facts(About("Small", "s", ("a",), 61, 30, (0.5,), (0.3,)), all_)
        )
    with pytest.raises(DataError, match="mean pixel"):
        check_facts("Small", images.facts(ABOUT, all_))
    labels = all_.labels.copy()
    labels[0] = 1
    with pytest.raises(DataError, match="19 training images of the rarest label instead of 20"):
        check_facts("Small", images.balance(right, Images(all_.pixels, labels, 60)))
