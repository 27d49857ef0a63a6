"""Errors of the trial run of a user's own network on two rows."""

import pytest
import torch
from messages import says

from isonomy.errors import ConfigError, DataError
from isonomy.models import make_task

torch.set_num_threads(1)


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
