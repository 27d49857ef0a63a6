"""Errors of a user's own network: finding it, calling it, and its layers."""

import pytest
import torch
from messages import says

from isonomy.errors import ConfigError

torch.set_num_threads(1)


# ---- a user's own class: finding and calling it


@pytest.mark.parametrize("path", [":Net", "nets:", "nets:a:b", "my nets:Net", "./nets:Net"])
def test_malformed_path(data, path):
    says(
        ConfigError,
        f"model '{path}': an import path is written 'package.module:Class'; correct it.",
        path,
        data(),
    )


@pytest.mark.parametrize("module", ["nosuchpackage.nets", "nosuch"])
def test_module_not_found(data, nets, module):
    says(
        ConfigError,
        f"model '{module}:Net': no module '{module}' in the current folder or among the installed "
        "packages; start in the folder that holds it, or install it.",
        f"{module}:Net",
        data(),
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import nosuchthing", "ModuleNotFoundError: No module named 'nosuchthing'"),
        ("raise ValueError('no GPU.\\nsecond line')", "ValueError: no GPU"),
        ("raise SystemExit", "SystemExit"),
        ("raise ValueError('x' * 300)", f"ValueError: {'x' * 225}..."),
    ],
)
def test_import_fails(data, nets, text, cause):
    nets(text)
    says(
        ConfigError,
        f"model 'nets:Net': importing 'nets' failed with {cause}; put that right first.",
        "nets:Net",
        data(),
    )


def test_attribute_missing(data, nets):
    nets("class Network(nn.Module): pass")
    says(
        ConfigError,
        "model 'nets:Netwrk': 'nets' has no 'Netwrk'; name a class that it defines. "
        "Did you mean 'Network'?",
        "nets:Netwrk",
        data(),
    )


@pytest.mark.parametrize("text", ["class Net: pass", "Net = 3"])
def test_not_a_module(data, nets, text):
    nets(text)
    says(
        ConfigError,
        "model 'nets:Net': 'Net' is not a torch.nn.Module; name a subclass of it or a function "
        "that returns one.",
        "nets:Net",
        data(),
    )


def test_already_built(data, nets):
    nets("Net = nn.Linear(5, 2)")
    says(
        ConfigError,
        "model 'nets:Net': 'Net' is a network already built; name its class or a function that "
        "builds it, so that each seed can start afresh.",
        "nets:Net",
        data(),
    )


def test_function_returns_something_else(data, nets):
    nets("def make(): return 3")
    says(
        ConfigError,
        "model 'nets:make' returned int, not a torch.nn.Module; return the network.",
        "nets:make",
        data(),
    )


NET = """
class Net(nn.Module):
    def __init__(self, inputs, outputs, width=3, *, scale=1.0):
        super().__init__()
        if width > 9:
            raise ValueError("too wide.")
        self.one = nn.Linear(inputs, width)
        self.two = nn.Linear(width, outputs)
        self.scale = scale
    def forward(self, x):
        return self.scale * self.two(self.one(x).relu())
"""


def test_unknown_constructor_option(data, nets):
    nets(NET)
    says(
        ConfigError,
        "model.witdh: 'nets:Net' has no option 'witdh'; its options are inputs, outputs, scale, "
        "width. "
        "Did you mean 'width'?",
        "nets:Net",
        data(),
        {"witdh": 3},
    )


def test_constructor_without_options(data, nets):
    nets("def make(): return nn.Linear(5, 2)")
    says(
        ConfigError,
        "model.width: 'nets:make' has no options; remove it.",
        "nets:make",
        data(),
        {"width": 3},
    )


@pytest.mark.parametrize(
    ("parameters", "words"), [("depth", "depth; give it"), ("depth, b", "depth, b; give them")]
)
def test_constructor_needs_more_options(data, nets, parameters, words):
    nets(f"def make({parameters}, inputs): return nn.Linear(inputs, depth)")
    says(
        ConfigError,
        f"model 'nets:make': its constructor needs {words} in the model's options (only inputs, "
        "shape and outputs come from the data).",
        "nets:make",
        data(),
    )


def test_constructor_fails(data, nets):
    nets(NET)
    says(
        ConfigError,
        "model 'nets:Net': its constructor failed with ValueError: too wide, when called with "
        "inputs=5, outputs=2, width=10; correct the options or the class.",
        "nets:Net",
        data(),
        {"width": 10},
    )


def test_constructor_fails_without_arguments(data, nets):
    nets("def make(): return 1 / 0")
    says(
        ConfigError,
        "model 'nets:make': its constructor failed with ZeroDivisionError: division by zero, when "
        "called with no arguments; correct the options or the class.",
        "nets:make",
        data(),
    )


# ---- a user's own class: its layers


@pytest.mark.parametrize(
    ("layers", "shape", "kind"),
    [
        ("nn.Flatten(), nn.Linear(5, 4), nn.BatchNorm1d(4)", (5,), "BatchNorm1d"),
        ("nn.Conv2d(1, 4, 3), nn.Identity(), nn.BatchNorm2d(4)", (1, 5, 5), "BatchNorm2d"),
        ("nn.Conv3d(1, 4, 3), nn.Identity(), nn.BatchNorm3d(4)", (1, 5, 5, 5), "BatchNorm3d"),
        ("nn.Conv2d(1, 4, 3), nn.Identity(), nn.SyncBatchNorm(4)", (1, 5, 5), "SyncBatchNorm"),
    ],
)
def test_batch_norm(data, nets, layers, shape, kind):
    nets(f"def make(): return nn.Sequential({layers}, nn.Flatten(), nn.Linear(4, 2))")
    says(
        ConfigError,
        f"model 'nets:make' has {kind} at '2', whose running statistics cannot be averaged over "
        "clients; use GroupNorm, or set convert = true to replace it.",
        "nets:make",
        data(shape),
    )


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("LazyBatchNorm1d()", "use GroupNorm"),
        (
            "LazyLinear(2)",
            "give its sizes in the constructor (parameters named inputs, shape and outputs "
            "receive the data's)",
        ),
    ],
)
def test_lazy(data, nets, kind, advice, convert):
    nets(f"def make(): return nn.Sequential(nn.Linear(5, 2), nn.{kind})")
    says(
        ConfigError,
        f"model 'nets:make' has {kind.split('(')[0]} at '1', which has no size before the first "
        f"batch; {advice}.",
        "nets:make",
        data(),
        convert=convert,
    )


@pytest.mark.parametrize("kind", ["Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"])
def test_dropout(data, nets, kind):
    nets(f"def make(): return nn.Sequential(nn.Linear(5, 2), nn.{kind}(0.25))")
    says(
        ConfigError,
        f"model 'nets:make' has {kind} with p = 0.25 at '1', whose random draws no engine can "
        "repeat; remove it, or set convert = true to make p = 0.",
        "nets:make",
        data(),
    )


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ("nn.MultiheadAttention(4, 2, dropout=0.1)", "MultiheadAttention"),
        ("nn.LSTM(4, 2, num_layers=2, dropout=0.1)", "LSTM"),
    ],
)
def test_dropout_inside_a_layer(data, nets, layer, kind):
    nets(f"def make(): return {layer}")
    says(
        ConfigError,
        f"model 'nets:make' has {kind} with p = 0.1, whose random draws no engine can repeat; "
        "remove it, or set convert = true to make p = 0.",
        "nets:make",
        data(),
    )


def test_no_parameters(data, nets):
    nets("def make(): return nn.Flatten()")
    says(
        ConfigError,
        "model 'nets:make' has no parameters, so there is nothing to train; register its layers "
        "as attributes, nn.ModuleList or nn.Parameter.",
        "nets:make",
        data(),
    )


@pytest.mark.parametrize("convert", [False, True])
def test_frozen_parameter(data, nets, convert):
    nets("def make(): return nn.Sequential(nn.Linear(5, 3).requires_grad_(False), nn.Linear(3, 2))")
    says(
        ConfigError,
        "model 'nets:make' has the frozen parameter '0.weight', which training would change; "
        "register it as a buffer (register_buffer).",
        "nets:make",
        data(),
        convert=convert,
    )


def test_initial_values_are_not_reproducible(data, nets):
    nets("""
import random
def make():
    net = nn.Linear(5, 2)
    nn.init.constant_(net.bias, random.SystemRandom().random())
    return net
""")
    says(
        ConfigError,
        "model 'nets:make' starts 'bias' with other numbers each time for the same seed; draw "
        "its initial values from torch's own generator only.",
        "nets:make",
        data(),
    )
