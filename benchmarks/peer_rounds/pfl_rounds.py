"""The rounds in pfl-research, in one process, with our order: its FederatedAveraging.

It has no q-FedAvg; this is written here with its interface. It sums statistics as float32.
"""

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
from pfl.stats import MappedVectorStatistics
from shared import Record, arrays, asked, initial_network, mean_loss
from torch import nn

work, place = asked()
record, asked_of = Record(work), [0] * work.clients


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


class QFedAvg(FederatedAveraging):
    """q-FedAvg: clients send their weighted step and their h; the server divides the sums."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        loss = mean_loss(model.pytorch_model, *user_dataset.raw_data) + 1e-10
        steps, metrics = super().train_one_user(
            initial_model_state, model, user_dataset, central_context
        )
        lipschitz, squares = 1 / work.lr, 0.0
        for step in steps.values():
            step.mul_(lipschitz)
            squares += float((step**2).sum())
            step.mul_(loss**work.q)
        h = work.q * loss ** (work.q - 1) * squares + lipschitz * loss**work.q
        steps["h"] = torch.tensor([h])
        return steps, metrics

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        h = float(statistics["h"])
        names = [name for name in statistics if name != "h"]
        mean = MappedVectorStatistics({name: statistics[name] / h for name in names})
        return model.apply_model_update(mean)


class Watch(TrainingProcessCallback):
    """Records the end of each round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        record.round(lambda: arrays(net))
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
(QFedAvg() if work.q else FederatedAveraging()).run(
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
