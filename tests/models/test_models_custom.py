"""A user's own network: finding, filling, converting."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from isonomy.models import converted, make_task

torch.set_num_threads(1)

NET = """
class Net(nn.Module):
    def __init__(self, inputs, outputs, shape=None, width=3):
        super().__init__()
        self.given = (inputs, outputs, shape, width)
        self.one = nn.Linear(inputs, width)
        self.two = nn.Linear(width, outputs)
    def forward(self, x):
        return self.two(self.one(x.flatten(1)).relu())

class Box:
    Net = Net

def make(**options):
    return nn.Linear(5, options["width"])
"""


@pytest.mark.parametrize(
    ("shape", "classes", "options", "given"),
    [
        ((5,), 2, {}, (5, 2, (5,), 3)),
        ((1, 4, 4), 3, {"width": 6}, (16, 3, (1, 4, 4), 6)),
        ((5,), 0, {"shape": "mine"}, (5, 1, "mine", 3)),
    ],
)
def test_constructor_is_filled_from_options_then_data(data, nets, shape, classes, options, given):
    nets(NET)
    task = make_task("nets:Net", data(shape, classes), options)
    assert task.net.given == given
    assert task.loss_name == ("cross_entropy" if classes else "squared")


def test_same_numbers_as_the_mlp(data, nets):
    nets(NET)
    federation = data()
    own = make_task("nets:Net", federation)
    ours = make_task("mlp", federation, {"hidden": [3]})
    for seed in (0, 4):
        assert torch.equal(
            own.outputs(own.init(seed), federation.x), ours.outputs(ours.init(seed), federation.x)
        )


@pytest.mark.parametrize("path", ["nets:Box.Net", "torch.nn:Linear"])
def test_other_import_paths(data, nets, path):
    nets(NET)
    options = {"in_features": 5, "out_features": 2} if path.startswith("torch") else {}
    assert make_task(path, data(), options).classes == 2


def test_functions_and_arbitrary_options(data, nets):
    nets(NET)
    assert make_task("nets:make", data(), {"width": 2}).net.out_features == 2


def test_package_in_the_current_folder(data, nets, tmp_path, monkeypatch):
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").write_text("")
    (tmp_path / "mypackage" / "nets.py").write_text(f"from torch import nn\n{NET}")
    try:
        task = make_task("mypackage.nets:Net", data(), loss="logistic")
    finally:
        for name in ("mypackage", "mypackage.nets"):
            sys.modules.pop(name, None)
    assert task.net.given == (5, 1, (5,), 3)


def test_tied_weights_stay_one_parameter(data, nets):
    nets("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)
        self.b.weight = self.a.weight
        self.head = nn.Linear(5, 2)
    def forward(self, x):
        return self.head(self.b(self.a(x)))
""")
    task = make_task("nets:Net", data())
    assert list(task.init(0)) == ["a.weight", "a.bias", "b.bias", "head.weight", "head.bias"]


# ---- conversion


def norms(net):
    return [m for m in net.modules() if isinstance(m, nn.GroupNorm)]


CONVERT = """
def rows(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 8), nn.BatchNorm1d(8, eps=0.01), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(8, outputs),
    )
def images(outputs):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1),
        nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(64, outputs),
    )
def volumes(outputs):
    return nn.Sequential(
        nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(108, outputs)
    )
"""


@pytest.mark.parametrize(
    ("make", "shape", "groups"),
    [("rows", (5,), [1]), ("images", (1, 8, 8), [3, 2]), ("volumes", (1, 5, 5, 5), [2])],
)
def test_convert(data, nets, make, shape, groups):
    nets(CONVERT)
    federation = data(shape)
    task = make_task(f"nets:{make}", federation, convert=True)
    assert not any(isinstance(m, _BatchNorm) for m in task.net.modules())
    assert [norm.num_groups for norm in norms(task.net)] == groups
    assert not list(task.net.buffers())
    assert all(m.p == 0 for m in task.net.modules() if hasattr(m, "p"))
    out = task.outputs(task.init(1), federation.x)
    assert torch.isfinite(out).all()
    assert out.std(0).min() > 1e-3  # the rows still differ


def test_convert_keeps_weights_eps_and_names():
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, eps=0.5))
    nn.init.uniform_(net[1].weight)
    nn.init.uniform_(net[1].bias)
    names, weight, bias = [n for n, _ in net.named_parameters()], net[1].weight, net[1].bias
    new = converted(net)
    assert [n for n, _ in new.named_parameters()] == names
    assert new[1].weight is weight
    assert new[1].bias is bias
    assert new[1].eps == 0.5
    x = torch.randn(2, 1, 6, 6)
    expected = nn.functional.group_norm(new[0](x), 4, weight, bias, 0.5)
    assert torch.equal(new(x), expected)


def test_convert_without_affine_and_at_the_root():
    new = converted(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)))
    assert new[1].weight is None
    assert isinstance(converted(nn.BatchNorm2d(4)), nn.GroupNorm)


def test_convert_keeps_a_shared_norm_shared():
    norm = nn.BatchNorm1d(4)
    new = converted(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm))
    assert isinstance(new[1], nn.GroupNorm)
    assert new[1] is new[3]


def test_convert_reaches_dropout_inside_layers():
    net = nn.ModuleList(
        [nn.MultiheadAttention(4, 2, dropout=0.1), nn.LSTM(4, 2, num_layers=2, dropout=0.1)]
    )
    converted(net)
    assert [layer.dropout for layer in net] == [0.0, 0.0]


def test_dropout_at_zero_is_accepted(data, nets):
    nets("def make(): return nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.0))")
    assert make_task("nets:make", data()).classes == 2
