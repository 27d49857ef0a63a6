"""The rounds in pfl-research: its FederatedAveraging in one process, with our order."""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module, set_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from shared import Record, arrays, asked, initial_network
from torch import nn

work, place = asked()
record, asked_of = Record(), [0] * work.clients


class Net(nn.Module):
    """The network with its loss, as pfl wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = initial_network(work)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


def dataset(user: int) -> Dataset:
    x, y = work.examples(min(asked_of[user], work.rounds - 1), user)
    asked_of[user] += 1
    return Dataset([torch.from_numpy(x), torch.from_numpy(y)], user_id=user)


class Watch(TrainingProcessCallback):
    """Records the end of each round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        record.round()
        return False, Metrics()


if get_framework_module() is None or not hasattr(get_framework_module(), "get_pytorch_device"):
    from pfl.internal.ops import pytorch_ops

    set_framework_module(pytorch_ops)
data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(work.clients))))
net = Net()
model = PyTorchModel(
    net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
)
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=10**6,
        train_cohort_size=work.clients,
        val_cohort_size=0,
    ),
    SimulatedBackend(training_data=data, val_data=data),
    model,
    NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
    ),
    callbacks=[Watch()],
)
record.write(place, "pfl", arrays(net))
