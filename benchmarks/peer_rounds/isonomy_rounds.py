"""The rounds in Isonomy; the order of the examples is its own. "compile" sets `engine.compile`."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from shared import Record, asked, network

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.client_fair.q_fedavg import QFedAvg
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.core.work import Work as Local
from isonomy.data.federation import build
from isonomy.engines.batched.engine import Batched

work, place = asked()
torch.set_num_threads(work.threads)
if work.double:
    torch.set_default_dtype(torch.float64)
record, rows = Record(work), work.clients * work.size
fed = build(
    torch.from_numpy(work.x.reshape(rows, *work.x.shape[2:])),
    torch.from_numpy(work.y.reshape(rows)),
    torch.zeros(rows, 0, dtype=torch.int64),
    {"train": list(torch.arange(rows).split(work.size))},
    classes=10,
)
if work.double:  # data are float32 otherwise
    fed = replace(fed, x=fed.x.double())
task = Task(lambda: network(work.kind), classes=10)
names = [name for name, _ in task.net.named_parameters()]
params = {n: torch.from_numpy(p) for n, p in zip(names, work.initial, strict=True)}
algorithm = FMTL(lam=work.lam) if work.lam else QFedAvg(q=work.q) if work.q else FedAvg()
engine = Batched(task, fed, seed=0, compile="compile" in sys.argv[3:])
local = Local(batch=work.batch, lr=work.lr)
engine.prepare(local)
engine.reset(algorithm.init_client(task, params))
server = algorithm.init_server(task, params, work.clients)


def models():
    """The server's model and the clients' own ones."""
    own = engine.all_states()
    mine = [own["params"][n][k] for k in range(work.clients) for n in names] if work.lam else []
    return [t.numpy().copy() for t in (*tree.leaves(server.params), *mine)]


for round in range(work.rounds):
    cohort = engine.cohort(engine.everyone(), work=local, round=round)
    server = algorithm.round(server, cohort)
    record.round(models)
record.write(place, "isonomy", models())
