"""Every error of a model that does not fit: what is wrong, with what, and what to do."""

import re

import pytest
import torch

from isonomy.errors import ConfigError, DataError
from isonomy.models import make_task

torch.set_num_threads(1)


MEANING = re.compile(
    r"'[^']*'"  # names and values in quotes
    r"|\[[^\]]*\]"  # shapes
    r"|\w+ = \w+|\w+(?:\.\w+)+|\w+_\w+|[A-Z][a-z]+[A-Z]\w*"  # options and names in code
    r"|\d+"
)


def says(kind, sentence, *args, **kwargs):
    """The error says what the sentence says: its names, values and shapes, and a remedy."""
    with pytest.raises(kind) as caught:
        make_task(*args, **kwargs)
    text = str(caught.value)
    missing = [part for part in MEANING.findall(sentence) if part not in text]
    assert not missing, text
    assert (";" in sentence) == (";" in text), text
    assert "\n" not in text


# ---- names and options


@pytest.mark.parametrize(
    ("name", "hint"), [("resnet", " Did you mean 'resnet18'?"), ("forest", "")]
)
def test_unknown_model(data, name, hint):
    says(
        ConfigError,
        f"unknown model '{name}': use one of cnn, linear, logistic, mlp, package.module:Class, "
        f"resnet18, svm.{hint}",
        name,
        data(),
    )


def test_dotted_name_without_a_colon(data):
    says(
        ConfigError,
        "unknown model 'mypackage.nets.Net': a class of your own is written "
        "'mypackage.nets:Net', with a colon before its name.",
        "mypackage.nets.Net",
        data(),
    )


def test_unknown_option(data):
    says(
        ConfigError,
        "model.hiden: 'mlp' has no option 'hiden'; its options are activation, hidden. "
        "Did you mean 'hidden'?",
        "mlp",
        data(),
        {"hiden": [4]},
    )


@pytest.mark.parametrize(
    ("model", "options", "parts"),
    [
        ("mlp", {"hidden": [0]}, ["model.hidden = [0]", "whole numbers of at least 1", "[200]"]),
        ("mlp", {"hidden": [2.5]}, ["model.hidden = [2.5]", "whole numbers", "[200]"]),
        ("mlp", {"activation": "swish"}, ["model.activation = 'swish'", "'relu', 'tanh'"]),
        ("linear", {"bias": 1}, ["model.bias = 1", "true or false", "True"]),
        ("cnn", {"kernel": 4}, ["model.kernel = 4", "odd number", "5"]),
        ("cnn", {"channels": [8]}, ["model.channels = [8]", "2 whole numbers", "[32, 64]"]),
        ("cnn", {"padding": "none"}, ["model.padding = 'none'", "'same', 'valid'"]),
        ("resnet18", {"groups": True}, ["model.groups = True", "a whole number", "32"]),
    ],
)
def test_option_value(data, model, options, parts):
    with pytest.raises(ConfigError) as error:
        make_task(model, data((3, 16, 16)), options)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_single_width_is_a_list_of_one(data):
    task = make_task("mlp", data(), {"hidden": 4})
    assert task.init(0)["linear1.bias"].shape == (4,)


def test_resnet_groups_divide_width(data):
    says(
        ConfigError,
        "model.groups = 3 does not divide model.width = 8; give a number of groups that divides "
        "it.",
        "resnet18",
        data((3, 16, 16)),
        {"groups": 3, "width": 8},
    )


# ---- model and data


@pytest.mark.parametrize("model", ["cnn", "resnet18"])
def test_images_wanted(data, model):
    says(
        DataError,
        f"model '{model}' needs images [channels, height, width] but the rows of 'adult' have "
        "the shape [104]; use mlp.",
        model,
        data((104,), source="adult"),
    )


@pytest.mark.parametrize(
    ("padding", "side", "advice"),
    [("valid", 8, "set padding = 'same' or use mlp"), ("same", 3, "use mlp")],
)
def test_images_too_small(data, padding, side, advice):
    says(
        DataError,
        f"model 'cnn': images of {side} by {side} are too small for two convolutions with kernel "
        f"5, padding '{padding}' and two pools; {advice}.",
        "cnn",
        data((1, side, side)),
        {"padding": padding},
    )


def test_rows_without_features(data):
    says(
        DataError,
        "model 'mlp' needs rows with features but 'toy' has a single number in each row; give x "
        "the shape [rows, 1].",
        "mlp",
        data(()),
    )


@pytest.mark.parametrize(
    ("model", "classes", "sentence"),
    [
        ("logistic", 0, "needs two or more classes but 'toy' has a number to predict; use linear"),
        ("svm", 0, "needs two classes but 'toy' has a number to predict; use linear"),
        ("svm", 4, "needs two classes but 'toy' has 4 classes; use logistic"),
    ],
)
def test_labels_do_not_fit_the_model(data, model, classes, sentence):
    says(DataError, f"model '{model}' {sentence} or mlp.", model, data(classes=classes))


def test_unnamed_data(data):
    says(
        DataError,
        "model 'svm' needs two classes but the data has 4 classes; use logistic or mlp.",
        "svm",
        data(classes=4, source=""),
    )


def test_one_class(data):
    says(
        DataError,
        "model 'mlp': 'toy' has one class only, so there is nothing to learn; give labels of two "
        "classes or more.",
        "mlp",
        data(classes=1),
    )


@pytest.mark.parametrize(
    ("loss", "classes", "sentence"),
    [
        ("hinge", 4, "needs two classes but 'toy' has 4 classes; use loss 'cross_entropy'."),
        ("logistic", 0, "needs two classes but 'toy' has a number to predict; use loss 'squared'."),
        (
            "squared",
            2,
            "needs a number to predict but 'toy' has 2 classes; use loss 'cross_entropy'.",
        ),
        (
            "cross_entropy",
            0,
            "needs two or more classes but 'toy' has a number to predict; use loss 'squared'.",
        ),
    ],
)
def test_labels_do_not_fit_the_loss(data, loss, classes, sentence):
    says(DataError, f"loss '{loss}' {sentence}", "mlp", data(classes=classes), {}, loss=loss)


def test_unknown_loss(data):
    says(
        ConfigError,
        "unknown loss 'hing': use one of cross_entropy, hinge, logistic, squared. "
        "Did you mean 'hinge'?",
        "mlp",
        data(),
        {},
        loss="hing",
    )


def test_loss_of_another_model(data):
    says(
        ConfigError,
        "model 'svm' trains with hinge, not with loss 'logistic'; leave loss out, or use linear "
        "or mlp.",
        "svm",
        data(),
        {},
        loss="logistic",
    )


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


def test_built_already(data, nets):
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
def test_constructor_needs_more(data, nets, parameters, words):
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


# ---- a user's own class: what is in it


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


def test_start_not_repeatable(data, nets):
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


# ---- a user's own class: the dry run


def forward(nets, body, layer="nn.Linear(5, 2)"):
    nets(f"""
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}
        self.register_buffer("seen", torch.zeros(2))
    def forward(self, x):
        {body}
""")


def test_input_does_not_fit(data, nets):
    nets("def make(): return nn.Linear(7, 2)")
    says(
        DataError,
        "model 'nets:make' cannot run on two rows of 'toy', of shape [5] each: RuntimeError: mat1 "
        "and mat2 shapes cannot be multiplied (2x5 and 7x2); make it fit (constructor parameters "
        "named inputs and shape receive the data's), or use mlp.",
        "nets:make",
        data(),
    )


CHANGE = "change its last layer (a constructor parameter named outputs receives the number)"


@pytest.mark.parametrize(
    ("net", "classes", "sentence"),
    [
        (
            "nn.Linear(5, 10)",
            2,
            "gives 10 outputs for a row but loss 'cross_entropy' on 'toy' (2 classes) needs 2: "
            f"[rows, 2]; {CHANGE}.",
        ),
        (
            "nn.Linear(5, 1)",
            2,
            "gives 1 output for a row but loss 'cross_entropy' on 'toy' (2 classes) needs 2: "
            f"[rows, 2]; {CHANGE}, or set loss = 'logistic'.",
        ),
        (
            "nn.Linear(5, 2)",
            0,
            f"gives 2 outputs for a row but loss 'squared' on 'toy' needs 1: [rows, 1]; {CHANGE}.",
        ),
        (
            "nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))",
            0,
            "gives outputs of shape [2] for two rows but loss 'squared' on 'toy' needs 1: "
            f"[rows, 1]; {CHANGE}.",
        ),
    ],
)
def test_outputs_do_not_fit(data, nets, net, classes, sentence):
    nets(f"def make(): return {net}")
    says(DataError, f"model 'nets:make' {sentence}", "nets:make", data(classes=classes))


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (
            "return self.layer(x), x",
            ConfigError,
            "returns tuple from forward; return one tensor [rows, outputs].",
        ),
        (
            "return self.layer(x).long()",
            ConfigError,
            "gives outputs of type torch.int64, which have no gradient; return the last layer's "
            "raw outputs.",
        ),
        (
            "return (self.layer(x) * 0).log() * 0",
            DataError,
            "gives outputs that are not finite on rows of 'toy'; scale the features, or look for "
            "a log or a division in forward.",
        ),
        (
            "return self.layer(x).softmax(-1)",
            ConfigError,
            "ends in a softmax, which the loss applies itself; return the last layer's raw "
            "outputs.",
        ),
        (
            "self.seen += 1; return self.layer(x)",
            ConfigError,
            "changes its buffer 'seen' in forward, so its outputs depend on what it saw before; "
            "keep forward a pure function of the row.",
        ),
        (
            "return self.layer(x).squeeze(0)",
            ConfigError,
            "gives outputs of shape [2] for a batch of one row; return [rows, outputs] always "
            "(a bare squeeze() drops the rows).",
        ),
        (
            "return self.layer(x - x.mean(0))",
            ConfigError,
            "gives a row other outputs when another row stands beside it or when called again; "
            "keep forward a pure function of each row (no batch statistics, no random draws).",
        ),
        (
            "return F.batch_norm(self.layer(x), None, None, training=True)",
            ConfigError,
            "runs on two rows but not on one: ValueError: Expected more than 1 value per channel "
            "when training, got input size torch.Size([1, 2]); keep forward a pure function of "
            "each row (no batch statistics).",
        ),
        (
            "self.calls = getattr(self, 'calls', 0) + 1; return self.layer(x) * self.calls",
            ConfigError,
            "gives other outputs for a batch of clients than alone; keep forward a pure function "
            "of the row and the parameters.",
        ),
        (
            "return (self.layer(x) * 0).square().sqrt()",
            DataError,
            "has a gradient that is not finite at its first parameters; scale the features, or "
            "look for a root, a log or a division in forward.",
        ),
    ],
)
def test_forward_is_impure(data, nets, body, kind, sentence):
    forward(nets, body)
    says(kind, f"model 'nets:Net' {sentence}", "nets:Net", data())


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (
            "return F.dropout(self.layer(x), 0.5)",
            "it draws random numbers in forward; remove the draw",
        ),
        (
            "return F.rrelu(self.layer(x), training=True)",
            "RReLU draws random numbers; use LeakyReLU",
        ),
        (
            "h = self.layer(x); return h * h.sum().item()",
            "it turns a tensor into a Python number (.item(), float() or int()); keep it a tensor",
        ),
        (
            "h = self.layer(x); return h if h.sum() > 0 else -h",
            "it branches on a tensor's value; use torch.where",
        ),
        (
            "h = self.layer(x); h[h > 9].sum(); return h",
            "it makes a tensor whose size depends on values (a boolean mask or nonzero); use "
            "torch.where",
        ),
        (
            "h = self.layer(x); h.detach().numpy(); return h",
            "it takes values out of a tensor (.numpy() or .tolist()); stay in torch",
        ),
        (
            "h = self.layer(x); self.seen.add_(0 * h.detach().mean(0)); return h",
            "it writes in place into a tensor made beforehand (a buffer or torch.zeros); make new "
            "tensors with torch.stack, torch.cat or torch.where",
        ),
        (
            "h = torch.zeros(len(x), 2); h[:, 0] = self.layer(x)[:, 0]; return h",
            "it writes in place into a tensor made beforehand (a buffer or torch.zeros); make new "
            "tensors with torch.stack, torch.cat or torch.where",
        ),
        (
            "return self.layer(x) + self.layer.weight.data.sum()",
            "torch says RuntimeError: accessing `data` under vmap transform is not allowed; write "
            "forward with other operations",
        ),
    ],
)
def test_fails_under_vmap(data, nets, body, cause):
    forward(nets, body)
    says(
        ConfigError,
        "model 'nets:Net' runs alone but not for a batch of clients at once (torch.func.vmap): "
        f"{cause}.",
        "nets:Net",
        data(),
    )


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_under_vmap(data, nets, kind):
    forward(nets, "return self.layer(x)[0][:, -1]", f"nn.{kind}(4, 2, batch_first=True)")
    says(
        ConfigError,
        "model 'nets:Net' runs alone but not for a batch of clients at once (torch.func.vmap): "
        "torch cannot batch its recurrent layers over clients; write the recurrence with "
        f"nn.{kind}Cell.",
        "nets:Net",
        data((3, 4)),
    )


def test_running_statistics(data, nets):
    forward(
        nets,
        "return self.layer(x).mean((2, 3))",
        "nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True))",
    )
    says(
        ConfigError,
        "model 'nets:Net' changes its buffer 'layer.1.running_mean' in forward, so its outputs "
        "depend on what it saw before; keep forward a pure function of the row.",
        "nets:Net",
        data((1, 6, 6)),
    )


def test_one_feature_batch_norm_cannot_be_converted(data, nets):
    nets("def make(): return nn.Sequential(nn.Linear(5, 1), nn.BatchNorm1d(1), nn.Linear(1, 2))")
    says(
        ConfigError,
        "model 'nets:make' has BatchNorm1d at '1' over one feature, which no GroupNorm can "
        "replace; remove it.",
        "nets:make",
        data(),
        convert=True,
    )


def test_a_refused_model_leaves_the_generator_alone(data, nets):
    forward(nets, "return F.dropout(self.layer(x), 0.5)")
    before = torch.random.get_rng_state()
    with pytest.raises(ConfigError):
        make_task("nets:Net", data())
    assert torch.equal(torch.random.get_rng_state(), before)
