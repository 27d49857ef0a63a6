"""The networks: numbers, shapes, gradients."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import isonomy.models
from isonomy.core.task import Batch
from isonomy.models import LOSSES, MODELS, make_task
from isonomy.models.cnn import cnn
from isonomy.models.linear import linear
from isonomy.models.mlp import mlp
from isonomy.models.resnet import Block, resnet18

torch.set_num_threads(1)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def twin(net: nn.Module, plain: nn.Module) -> nn.Module:
    """The plain module with the net's numbers, in order."""
    ours, theirs = list(net.parameters()), list(plain.parameters())
    assert [p.shape for p in ours] == [p.shape for p in theirs]
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine)
    return plain


def seeded(make, seed=3):
    torch.manual_seed(seed)
    return make()


# ---- the same numbers as plain torch


def test_linear_is_a_linear_layer():
    x = torch.randn(4, 6)
    net = seeded(lambda: linear((6,), 3))
    plain = seeded(lambda: nn.Linear(6, 3))
    assert torch.equal(net(x), plain(x))
    assert torch.equal(net(x.reshape(4, 1, 2, 3)), plain(x))
    assert count(linear((6,), 3)) == 21
    assert count(linear((6,), 3, bias=False)) == 18


def test_mlp_is_the_plain_sequential_after_the_same_seed():
    x = torch.randn(4, 11)
    net = seeded(lambda: mlp((11,), 2, hidden=[4]))
    plain = seeded(lambda: nn.Sequential(nn.Linear(11, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert torch.equal(net(x), plain(x))


def test_task_init_gives_the_plain_sequential_numbers(data):
    task = make_task("mlp", data((11,)), {"hidden": [4]})
    plain = seeded(lambda: nn.Sequential(nn.Linear(11, 4), nn.ReLU(), nn.Linear(4, 2)), 5)
    for ours, theirs in zip(task.init(5).values(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("word", "layer"),
    [
        ("relu", nn.ReLU),
        ("tanh", nn.Tanh),
        ("sigmoid", nn.Sigmoid),
        ("gelu", nn.GELU),
        ("elu", nn.ELU),
    ],
)
def test_mlp_activations(word, layer):
    x = torch.randn(4, 5)
    net = mlp((5,), 2, hidden=[7, 6], activation=word)
    plain = nn.Sequential(nn.Linear(5, 7), layer(), nn.Linear(7, 6), layer(), nn.Linear(6, 2))
    assert torch.equal(net(x), twin(net, plain)(x))


def test_mlp_without_hidden_layers_is_linear():
    x = torch.randn(4, 5)
    net = mlp((5,), 2, hidden=[])
    assert torch.equal(net(x), twin(net, nn.Linear(5, 2))(x))


@pytest.mark.parametrize(
    ("shape", "padding", "flat"),
    [
        ((1, 28, 28), "same", 3136),
        ((1, 28, 28), "valid", 1024),
        ((3, 32, 32), "same", 4096),
        ((3, 32, 32), "valid", 1600),
    ],
)
def test_cnn_is_the_papers_stack(shape, padding, flat):
    x = torch.randn(2, *shape)
    net = cnn(shape, 10, padding=padding, dense=[20])
    plain = nn.Sequential(
        nn.Conv2d(shape[0], 32, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 20),
        nn.ReLU(),
        nn.Linear(20, 10),
    )
    torch.testing.assert_close(net(x), twin(net, plain)(x))


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: mlp((784,), 10), 784 * 200 + 200 + 2010),
        (lambda: cnn((1, 28, 28), 10, dense=[512]), 1_663_370),  # McMahan et al., 2017
        (lambda: cnn((1, 28, 28), 10), 3_274_634),  # Ditto's Fashion-MNIST network
        (lambda: cnn((3, 32, 32), 10, channels=[16, 32], dense=[]), 1216 + 12832 + 20490),
        (lambda: resnet18((3, 32, 32), 10), 11_173_962),
        (lambda: resnet18((3, 224, 224), 1000, stem="imagenet"), 11_689_512),
    ],
)
def test_parameter_counts(make, parameters):
    assert count(make()) == parameters


def test_residual_block_adds_its_shortcut():
    x = torch.randn(2, 4, 6, 6)
    same, other = Block(4, 4, 1, 2), Block(4, 8, 2, 2)
    for block in (same, other):
        nn.init.zeros_(block.norm2.weight)  # F(x) = 0 leaves the shortcut
    assert torch.equal(same(x), x.relu())
    assert torch.equal(other(x), other.shortcut(x).relu())
    assert other(x).shape == (2, 8, 3, 3)


@pytest.mark.parametrize(("stem", "side"), [("cifar", 4), ("imagenet", 1)])
def test_resnet_stage_sizes(stem, side):
    net = resnet18((3, 32, 32), 10, stem=stem, width=8, groups=2)
    seen = []
    net.stage4.register_forward_hook(lambda module, inputs, out: seen.append(tuple(out.shape)))
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [(2, 64, side, side)]
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())


# ---- losses


@pytest.mark.parametrize("model", ["linear", "logistic", "mlp"])
@pytest.mark.parametrize("classes", [2, 4])
def test_cross_entropy_is_torchs(data, model, classes):
    federation = data(classes=classes)
    task = make_task(model, federation, loss="cross_entropy")
    params = task.init(1)
    out = task.outputs(params, federation.x)
    assert out.shape == (8, classes)
    expected = functional.cross_entropy(out, federation.y, reduction="none")
    torch.testing.assert_close(task.each_loss(out, federation.y), expected)


@pytest.mark.parametrize("model", ["logistic", "linear", "mlp"])
def test_logistic_is_torchs(data, model):
    federation = data()
    task = make_task(model, federation, loss="logistic")
    out = task.outputs(task.init(1), federation.x)
    assert out.shape == (8, 1)
    expected = functional.binary_cross_entropy_with_logits(
        out[:, 0], federation.y.float(), reduction="none"
    )
    torch.testing.assert_close(task.each_loss(out, federation.y), expected)


def test_hinge_by_hand(data):
    task = make_task("svm", data())
    out = torch.tensor([[2.0], [0.25], [-0.5], [-3.0]])
    losses = task.each_loss(out, torch.tensor([1, 1, 1, 0]))
    assert losses.tolist() == [0.0, 0.75, 1.5, 0.0]
    assert task.decide(out).tolist() == [1, 1, 0, 0]


def test_squared_is_torchs(data):
    federation = data(classes=0)
    task = make_task("linear", federation, {"bias": False})
    params = {"linear.weight": torch.tensor([[1.0, 0, 0, 0, 2.0]])}
    expected = functional.mse_loss(
        federation.x[:, 0] + 2 * federation.x[:, 4], federation.y, reduction="none"
    )
    batch = Batch(federation.x, federation.y, federation.groups, torch.ones(8))
    torch.testing.assert_close(task.losses(params, batch), expected)


@pytest.mark.parametrize(
    ("model", "classes", "loss", "outputs"),
    [
        ("linear", 0, "squared", 1),
        ("linear", 2, "cross_entropy", 2),
        ("linear", 5, "cross_entropy", 5),
        ("logistic", 2, "logistic", 1),
        ("logistic", 5, "cross_entropy", 5),
        ("svm", 2, "hinge", 1),
        ("mlp", 0, "squared", 1),
        ("mlp", 2, "cross_entropy", 2),
    ],
)
def test_loss_and_outputs_follow_the_classes(data, model, classes, loss, outputs):
    federation = data(classes=classes, rows=20)
    task = make_task(model, federation, {})
    assert task.loss_name == loss
    assert task.classes == classes
    assert task.outputs(task.init(0), federation.x).shape == (20, outputs)


def test_levels_come_from_the_attributes(data):
    federation = data(attributes=(("sex", ("F", "M")), ("race", ("a", "b", "c"))))
    assert make_task("mlp", federation).levels == (2, 3)


# ---- vmap


SMALL = {
    "linear": ((5,), {}),
    "logistic": ((5,), {}),
    "svm": ((5,), {}),
    "mlp": ((5,), {"hidden": [4, 3], "activation": "tanh"}),
    "cnn": ((1, 12, 12), {"channels": [3, 4], "dense": [6]}),
    "resnet18": ((3, 16, 16), {"width": 4, "groups": 2}),
}


@pytest.mark.parametrize("model", MODELS)
def test_gradient_under_vmap_equals_the_loop(data, model):
    shape, options = SMALL[model]
    federation = data(shape, rows=12)
    task = make_task(model, federation, options)
    inits = [task.init(seed) for seed in range(3)]
    stacked = {name: torch.stack([p[name] for p in inits]) for name in inits[0]}
    batch = Batch(federation.x, federation.y, federation.groups, torch.ones(12))
    clients = [Batch(*(part[4 * k : 4 * k + 4] for part in batch)) for k in range(3)]
    cohort = Batch(*(torch.stack(parts) for parts in zip(*clients, strict=True)))
    together = vmap(grad(task.loss))(stacked, cohort)
    for k, (params, client) in enumerate(zip(inits, clients, strict=True)):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        out = functional_call(task.net, leaves, (client.x,))
        loss = task.each_loss(out, client.y).mean()
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            torch.testing.assert_close(together[name][k], slope, rtol=1e-4, atol=1e-5)
    assert sum(float(g.abs().sum()) for g in together.values()) > 0


# ---- the registry


def test_public_names():
    assert isonomy.models.__all__ == sorted(
        isonomy.models.__all__, key=lambda n: (not n.isupper(), n.islower(), n)
    )
    assert all(hasattr(isonomy.models, name) for name in isonomy.models.__all__)
    assert set(LOSSES) == {"cross_entropy", "logistic", "hinge", "squared"}


@pytest.mark.parametrize("model", MODELS)
def test_entries_describe_their_build_function(model):
    entry = MODELS[model]
    signature = inspect.signature(entry.build).parameters
    assert list(entry.options) == list(signature)[2:]
    for name, option in entry.options.items():
        assert option.convert(option.default) == option.default
        assert option.default == signature[name].default
        assert option.meaning
        assert option.allowed
    assert entry.description.endswith(".")


@pytest.mark.parametrize(
    ("model", "accepts"),
    [
        ("linear", "rows of any shape, flattened; two or more classes or a number to predict"),
        ("logistic", "rows of any shape, flattened; two or more classes"),
        ("svm", "rows of any shape, flattened; two classes"),
        (
            "cnn",
            "images [channels, height, width]; two or more classes or a number to predict",
        ),
    ],
)
def test_what_a_model_accepts(model, accepts):
    assert MODELS[model].accepts == accepts


def test_building_leaves_torchs_generator_alone(data):
    federation = data()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    make_task("mlp", federation).init(4)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_init_depends_on_the_seed_only(data):
    task = make_task("mlp", data())
    one, again, other = task.init(1), task.init(1), task.init(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["linear1.weight"], other["linear1.weight"])


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(isonomy.models.__path__)])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(f"isonomy.models.{name}")).failed == 0


def test_package_docstring_example():
    assert doctest.testmod(isonomy.models).failed == 0


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet_equals_its_formula(stem):
    net = resnet18((3, 32, 32), 10, stem=stem, width=8, groups=4)
    weight = iter(list(net.parameters()))
    x = torch.randn(2, 3, 32, 32)

    def conv_norm(h, stride=1):
        kernel = next(weight)
        h = functional.conv2d(h, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        return functional.group_norm(h, 4, next(weight), next(weight))

    out = conv_norm(x, 1 if stem == "cifar" else 2).relu()
    if stem == "imagenet":
        out = functional.max_pool2d(out, 3, 2, 1)
    for stride in (1, 1, 2, 1, 2, 1, 2, 1):
        inner = conv_norm(conv_norm(out, stride).relu())
        out = (inner + (out if stride == 1 else conv_norm(out, stride))).relu()
    out = functional.linear(out.mean((2, 3)), next(weight), next(weight))
    assert next(weight, None) is None
    torch.testing.assert_close(net(x), out)


@pytest.mark.parametrize("model", ["linear", "logistic", "mlp", "cnn"])
def test_a_description_of_the_data_makes_the_same_task(data, model):
    federation = data((1, 12, 12), attributes=(("sex", ("f", "m")),))
    of_rows, described = make_task(model, federation), make_task(model, federation.shape)
    assert (of_rows.loss_name, of_rows.classes) == (described.loss_name, described.classes)
    assert (of_rows.levels, of_rows.attributes) == (described.levels, described.attributes)
    for name, value in of_rows.init(3).items():
        assert torch.equal(value, described.init(3)[name])
