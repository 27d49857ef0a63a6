"""What a client measures at a model, against plain PyTorch on its own examples."""

from __future__ import annotations

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from isonomy.blocks.measure import gradient, loss_and_gradient, train_loss
from isonomy.contract.world import world
from isonomy.core import random, tree
from isonomy.core.client import Client, Pool, lone_client
from isonomy.core.work import Work


def clients_of(several: list[int]) -> list[Client]:
    where = world()
    fed, made = where.federation, []
    for k in several:
        first, last = fed.ranges[k, 0].tolist()
        own = Pool(fed.x[first:last], fed.y[first:last], fed.groups[first:last])
        made.append(lone_client(own, Work(), 0.1, random.key(0, 0, k)))
    return made


def test_the_loss_and_gradient_are_those_of_autograd() -> None:
    where = world()
    params = where.task.init(3)
    for client in clients_of([0, 2]):
        own = {k: p.clone().requires_grad_() for k, p in params.items()}
        out = functional_call(where.task.net, own, (client.pool.x,))
        expected = cross_entropy(out, client.pool.y)
        expected.backward()
        loss, slope = loss_and_gradient(where.task, params, client)
        assert_close(loss, expected.detach())
        for name, found in slope.items():
            assert_close(found, own[name].grad)


def test_one_pass_gives_the_bits_of_two() -> None:
    where = world()
    (client,) = clients_of([1])
    models = tree.stack([where.task.init(seed) for seed in range(3)])

    def together(params):  # type: ignore[no-untyped-def]
        return loss_and_gradient(where.task, params, client)

    def apart(params):  # type: ignore[no-untyped-def]
        loss = train_loss(where.task, params, client)
        return loss, grad(lambda p: train_loss(where.task, p, client))(params)

    for f in (lambda g: g(where.task.init(0)), lambda g: vmap(g)(models)):
        found, expected = tree.leaves(f(together)), tree.leaves(f(apart))
        assert all(map(torch.equal, found, expected))
    own = gradient(where.task, where.task.init(0), client, "full")
    assert all(map(torch.equal, tree.leaves(own), tree.leaves(together(where.task.init(0))[1])))
