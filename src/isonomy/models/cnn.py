"""The small convolutional network of the federated learning papers.

Convolution 5x5 to 32 channels, ReLU, max pool 2x2, convolution 5x5 to 64 channels, ReLU, max pool
2x2, dense layers with ReLU, classes. With the defaults (padding "same", `dense = [1024]`) it is
the Fashion-MNIST network of Ditto (Li, Hu, Beirami and Smith, 2021); with `dense = [512]` it is
that of FedAvg (McMahan et al., 2017) with its 1,663,370 parameters on 1x28x28 images.
`channels = [16, 32]`, `dense = [128]` are the widths of Ditto's FEMNIST network, without its
dropout.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from isonomy.errors import ConfigError, DataError
from isonomy.models.entry import Entry, Shape, options


def cnn(
    shape: Shape,
    outputs: int,
    *,
    channels: tuple[int, int] = (32, 64),
    kernel: int = 5,
    padding: Literal["same", "valid"] = "same",
    dense: tuple[int, ...] = (1024,),
) -> nn.Module:
    """Two convolutions, each with ReLU and a 2x2 max pool, then dense layers.

    Padding "same" keeps height and width at each convolution (28 to 14 to 7, 32 to 16 to 8);
    "valid" adds no padding (28 to 12 to 4, 32 to 14 to 5). Pooling drops an odd last row.
    """
    if kernel % 2 == 0:
        raise ConfigError(f"model.kernel = {kernel} is not allowed; give an odd number, such as 5.")
    before, height, width = shape
    pad = kernel // 2 if padding == "same" else 0
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, after in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, after, kernel, padding=pad)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        height, width = ((side + 2 * pad - kernel + 1) // 2 for side in (height, width))
        before = after
    if height < 1 or width < 1:
        other = "use mlp" if padding == "same" else "set padding = 'same' or use mlp"
        raise DataError(
            f"model 'cnn': images of {shape[1]} by {shape[2]} are too small for two convolutions "
            f"with kernel {kernel}, padding '{padding}' and two pooling layers; {other}."
        )
    layers["flatten"] = nn.Flatten()
    units = before * height * width
    for number, more in enumerate(dense, start=1):
        layers[f"dense{number}"] = nn.Linear(units, more)
        layers[f"activation{number}"] = nn.ReLU()
        units = more
    layers["head"] = nn.Linear(units, outputs)
    return nn.Sequential(layers)


CNN = Entry(
    build=cnn,
    description="Small convolutional network: two convolutions with pools, then dense layers.",
    options=options(
        cnn,
        channels={"meaning": "channels of the two convolutions", "ge": 1},
        kernel={"meaning": "height and width of the convolutions' kernels; an odd number", "ge": 1},
        padding={"meaning": "keep height and width at a convolution, or add no padding"},
        dense={"meaning": "units of each dense layer before the last", "ge": 1},
    ),
    losses=("cross_entropy", "squared", "logistic", "hinge"),
    images=True,
)
