"""Errors of a model that does not fit its options or the data."""

import pytest
import torch
from messages import says

from isonomy.errors import ConfigError, DataError
from isonomy.models import make_task

torch.set_num_threads(1)


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
def test_a_model_needs_images(data, model):
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
