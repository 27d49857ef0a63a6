"""Trees: arithmetic with literal numbers, and the way to disk and back."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import tree


class Point(NamedTuple):
    x: Any
    y: Any


A = {"w": torch.tensor([1.0, 2.0]), "b": (torch.tensor(3.0),)}
B = {"w": torch.tensor([10.0, 20.0]), "b": (torch.tensor(-1.0),)}


def values(made: Any) -> list[Any]:
    return [made["w"].tolist(), made["b"][0].item()]


def test_arithmetic_by_hand() -> None:
    assert values(tree.add(A, B)) == [[11.0, 22.0], 2.0]
    assert values(tree.sub(A, B)) == [[-9.0, -18.0], 4.0]
    assert values(tree.scale(A, 2.0)) == [[2.0, 4.0], 6.0]
    assert values(tree.scale(A, torch.tensor(0.5))) == [[0.5, 1.0], 1.5]
    assert values(tree.mix(A, B, 0.25)) == [[3.25, 6.5], 2.0]
    assert values(tree.zeros_like(A)) == [[0.0, 0.0], 0.0]
    assert float(tree.dot(A, B)) == 10 + 40 - 3
    assert float(tree.sq_norm(A)) == 1 + 4 + 9
    assert float(tree.dot({}, {})) == 0.0


def test_dot_refuses_trees_of_different_size() -> None:
    with pytest.raises(ValueError, match="argument"):
        tree.dot([torch.ones(1)], [torch.ones(1), torch.ones(1)])


def test_stacking_by_hand() -> None:
    stacked = tree.stack([A, B])
    assert values(tree.take(stacked, 1)) == values(B)
    assert tree.take(stacked, torch.tensor([1, 0]))["w"].tolist() == [[10.0, 20.0], [1.0, 2.0]]
    assert tree.concat([stacked, stacked])["b"][0].tolist() == [3.0, -1.0, 3.0, -1.0]
    assert tree.concat([stacked]) is stacked
    assert values(tree.weighted_sum(stacked, torch.tensor([2.0, 1.0]))) == [[12.0, 24.0], 5.0]
    assert values(tree.weighted_mean(stacked, torch.tensor([3.0, 1.0]))) == [[3.25, 6.5], 2.0]


def test_nbytes_by_hand() -> None:
    made = {
        "f": torch.zeros(3),
        "d": torch.zeros(2, dtype=torch.float64),
        "i": (torch.zeros((), dtype=torch.int64), torch.zeros(5, dtype=torch.bool)),
    }
    assert tree.nbytes(made) == 3 * 4 + 2 * 8 + 8 + 5
    assert tree.nbytes(()) == 0


def test_finite() -> None:
    assert tree.finite({"a": torch.ones(2), "n": torch.tensor(3)})
    assert not tree.finite({"a": torch.tensor([1.0, float("nan")])})
    assert not tree.finite([torch.ones(1), torch.tensor(float("-inf"))])
    assert not tree.finite([torch.tensor([float("inf"), float("-inf")])])
    assert tree.finite([torch.full((3,), 3e38)]), "the sum is not finite, the numbers are"
    assert tree.finite([])


def test_operations_make_new_tensors() -> None:
    before = values(A)
    for made in (tree.add(A, B), tree.scale(A, 1.0), tree.mix(A, B, 0.0), tree.stack([A])):
        for leaf in tree.leaves(made):
            leaf.add_(1)
    assert values(A) == before


# --- pack and unpack ------------------------------------------------------------------------------

dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
tensors = st.builds(
    lambda dtype, shape, seed: (
        100 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 50
    ).to(dtype),
    dtypes,
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
)
names = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4
)
trees = st.recursive(
    tensors,
    lambda inner: (
        st.dictionaries(names, inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(b, Tensor):
        return isinstance(a, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(b, dict):
        return isinstance(a, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in b)
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


@given(trees)
def test_round_trip(made: Any) -> None:
    arrays, shape = tree.pack(made)
    assert len(arrays) == len(tree.leaves(made))  # no two leaves under one name
    shape = json.loads(json.dumps(shape))
    plain = tree.unpack(arrays, shape)
    assert same(tree.like(made, plain), made)


@given(trees)
def test_round_trip_through_bytes(made: Any) -> None:
    arrays, shape = tree.pack(made)
    data = safetensors.torch.save(arrays)
    got = tree.like(made, tree.unpack(safetensors.torch.load(data), json.loads(json.dumps(shape))))
    assert same(got, made)


def test_a_named_tuple_comes_back_with_its_fields() -> None:
    plain = tree.unpack(*tree.pack(Point(torch.ones(1), torch.zeros(2))))
    assert type(plain).__name__ == "Point"
    assert plain._fields == ("x", "y")
    assert plain.y.shape == (2,)


def test_a_lone_tensor_and_an_empty_tree() -> None:
    assert torch.equal(tree.unpack(*tree.pack(torch.arange(3))), torch.arange(3))
    assert tree.unpack(*tree.pack(())) == ()
    assert tree.unpack(*tree.pack({"a": ()})) == {"a": ()}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"a": 1.0}, "float is not a tensor"),
        ({"a": {"b": "word"}}, "'a/b'"),
        ({"a/b": torch.ones(1)}, "without '/'"),
        ({1: torch.ones(1)}, "strings"),
        ([None], "NoneType"),
        ({"": {"x": torch.ones(1)}, "x": torch.zeros(1)}, "strings"),  # both would be named "x"
    ],
)
def test_pack_refuses_what_is_no_tree(bad: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tree.pack(bad)


ODD = {
    "ordered": OrderedDict(b=torch.ones(1), a=torch.zeros(2)),
    "nested": [{"a": (torch.ones(1), [torch.zeros(2)])}, Point({"x": torch.ones(3)}, ())],
    "none": (None, torch.ones(2)),
    "number": {"a": 3, "b": torch.ones(1)},
    "torch's own": torch.max(torch.ones(2, 2), 0),
}


@pytest.mark.parametrize("name", ODD)
def test_leaves_and_maps_are_those_of_torch(name: str) -> None:
    made = ODD[name]
    assert [id(leaf) for leaf in tree.leaves(made)] == [
        id(leaf) for leaf in pytree.tree_leaves(made)
    ]
    found = tree.tmap(lambda *each: each, made, made)
    expected = pytree.tree_map(lambda *each: each, made, made)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    assert str(found) == str(expected)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}),
        ({"a": torch.ones(1)}, [torch.ones(1)]),
        ((torch.ones(1), torch.ones(1)), (torch.ones(1),)),
        (Point(torch.ones(1), torch.ones(1)), (torch.ones(1), torch.ones(1))),
    ],
)
def test_trees_of_different_shapes_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        tree.add(one, other)


def test_a_second_dict_is_read_by_name() -> None:
    one = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    other = {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    assert {name: float(t) for name, t in tree.add(one, other).items()} == {"a": 11.0, "b": 22.0}
