"""ResNet-18 with GroupNorm.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016; GroupNorm (Wu and
He, 2018) replaces BatchNorm, whose running statistics are neither parameters to average nor a
pure function of one client. The number of parameters is the same as with BatchNorm: 11,173,962 for
CIFAR-10 with the CIFAR stem, 11,689,512 for ImageNet with the ImageNet stem.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from isonomy.errors import ConfigError
from isonomy.models.entry import Entry, Shape, options


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: relu(F(x) + x).

    Where the shape changes, the shortcut is a 1x1 convolution with its norm.
    """

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """relu(F(x) + shortcut(x))."""
        inner = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(inner + self.shortcut(x))


class Pool(nn.Module):
    """The mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, height, width] to [n, channels]."""
        return x.mean((-2, -1))


def resnet18(
    shape: Shape,
    outputs: int,
    *,
    stem: Literal["cifar", "imagenet"] = "cifar",
    groups: int = 32,
    width: int = 64,
) -> nn.Module:
    """Four stages of two blocks; each later stage has twice the channels and half the size.

    The first stage has `width` channels. Stem "cifar": one 3x3 convolution, no pool; "imagenet": a
    7x7 convolution of stride 2 and a 3x3 max pool of stride 2. Torch's own initialisation is used.
    """
    if width % groups:
        raise ConfigError(
            f"model.groups = {groups} does not divide model.width = {width}; give a number of "
            "groups that divides it."
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stem == "cifar":
        layers["conv"] = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
    else:
        layers["conv"] = nn.Conv2d(shape[0], width, 7, stride=2, padding=3, bias=False)
    layers["norm"] = nn.GroupNorm(groups, width)
    layers["relu"] = nn.ReLU()
    if stem == "imagenet":
        layers["stem_pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers[f"stage{stage + 1}"] = nn.Sequential(
            Block(before, after, 1 if stage == 0 else 2, groups), Block(after, after, 1, groups)
        )
        before = after
    layers["pool"] = Pool()
    layers["head"] = nn.Linear(before, outputs)
    return nn.Sequential(layers)


RESNET18 = Entry(
    build=resnet18,
    description="ResNet-18 with GroupNorm.",
    options=options(
        resnet18,
        stem={"meaning": "3x3 convolution, or 7x7 of stride 2 with a pool"},
        groups={"meaning": "groups of each GroupNorm; must divide width", "ge": 1},
        width={"meaning": "channels of the first stage; doubled at each later one", "ge": 1},
    ),
    losses=("cross_entropy", "squared", "logistic", "hinge"),
    images=True,
)
