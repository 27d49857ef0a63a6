"""The rounds in JAX: a scan over steps, mapped over clients, the whole round compiled.

JAX sizes its threads by the processors that the process may use; `peers.py` limits these.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from shared import Record, asked

work, place = asked()
jax.config.update("jax_enable_x64", work.double)
steps = work.size // work.batch


def logits(params, x):
    if work.kind == "mlp":
        w1, b1, w2, b2 = params
        return jax.nn.relu(x @ w1.T + b1) @ w2.T + b2
    k1, b1, k2, b2, w, b = params
    for kernel, bias in ((k1, b1), (k2, b2)):
        x = jax.lax.conv(x, kernel, (1, 1), "VALID") + bias[:, None, None]
        x = jax.lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
        )
    return x.reshape(x.shape[0], -1) @ w.T + b


def loss(params, x, y):
    each = jax.nn.log_softmax(logits(params, x))
    return -jnp.take_along_axis(each, y[:, None], 1).mean()


def client(params, own, x, y, rows):
    def step(carry, at):
        now, mine = carry
        g = jax.grad(loss)(now, x[at], y[at])
        now = [p - work.lr * d for p, d in zip(now, g, strict=True)]
        if work.lam:
            g = jax.grad(loss)(mine, x[at], y[at])
            mine = [
                v - work.lr * (d + work.lam * (v - w))
                for v, d, w in zip(mine, g, params, strict=True)
            ]
        return (now, mine), None

    before = loss(params, x, y) if work.q else 0.0
    return jax.lax.scan(step, (params, own), rows.reshape(steps, work.batch))[0], before


@jax.jit
def whole(params, own, rows):
    (new, own), losses = jax.vmap(client, in_axes=(None, 0, 0, 0, 0))(params, own, x, y, rows)
    if not work.q:
        return [p.mean(0) for p in new], own
    # q-FedAvg, as its Algorithm 2 is printed
    lipschitz, losses = 1 / work.lr, losses + 1e-10
    steps = [lipschitz * (w - p) for w, p in zip(params, new, strict=True)]
    squares = sum((d**2).reshape(work.clients, -1).sum(1) for d in steps)
    h = work.q * losses ** (work.q - 1) * squares + lipschitz * losses**work.q
    total = [jnp.tensordot(losses**work.q, d, 1) for d in steps]
    return [w - t / h.sum() for w, t in zip(params, total, strict=True)], own


x, y, record = jnp.asarray(work.x), jnp.asarray(work.y), Record(work)
params = [jnp.asarray(p) for p in work.initial]
own = (
    [jnp.repeat(p[None], work.clients, 0) for p in params]
    if work.lam
    else [jnp.zeros(work.clients)]
)


def models():
    """The server's model and the clients' own ones."""
    mine = [np.asarray(p[k]) for k in range(work.clients) for p in own] if work.lam else []
    return [*(np.asarray(p) for p in params), *mine]


for rows in work.order:
    params, own = whole(params, own, jnp.asarray(rows))
    jax.block_until_ready((params, own))
    record.round(models)
record.write(place, "jax", models())
