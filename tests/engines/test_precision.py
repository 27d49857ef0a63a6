"""Local steps in bfloat16: really used, near float32, and refused where they cannot be computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isonomy import api
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.batched import engine as batched
from isonomy.engines.batched import precision
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.precision import has_bf16, in_precision
from isonomy.engines.batched.program import Programs
from isonomy.engines.batched.runner import Untraced
from isonomy.errors import ConfigError
from isonomy.runs.engine_check import check_engine

SHORT = {
    "rounds": 2,
    "data": {"name": "synthetic", "clients": 4, "examples": 200},
    "model": {"name": "mlp", "hidden": [8]},
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"steps": 5},
}


def images() -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, 8, 8, generator=generator)
    y = torch.randint(3, (60,), generator=generator)
    groups = torch.zeros(60, 0, dtype=torch.int64)
    return build(x, y, groups, {"train": list(torch.arange(60).split(15))}, classes=3)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def trained(**options: Any) -> dict[str, Tensor]:
    task = Task(net, classes=3)
    engine = Batched(task, images(), seed=0, **options)
    cohort = engine.cohort(engine.everyone(), work=Work(batch=5, lr=0.1, epochs=2), round=0)
    fedavg = FedAvg()
    server = fedavg.round(fedavg.init_server(task, task.init(0), cohort.clients), cohort)
    return dict(fedavg.model(task, fedavg.deployed(server), ()))


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return float(tree.sq_norm(tree.sub(a, b)).sqrt())


@pytest.mark.parametrize("chunk", [1, 4])
def test_steps_in_bf16_differ_and_stay_near(chunk: int) -> None:
    """Six steps, each with operands rounded by up to 2^-9: about 2 % of how far the model moves."""
    plain, start = trained(chunk=chunk), Task(net, classes=3).init(0)
    half = trained(chunk=chunk, precision="bf16")
    assert {t.dtype for t in half.values()} == {torch.float32}
    moved = distance(plain, start)
    assert 1e-3 * moved < distance(half, plain) < 0.05 * moved


def test_traced_and_untraced_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = trained(chunk=1, precision="bf16")
    monkeypatch.setattr(batched, "shared", lambda compile, kind: Untraced(kind))
    assert distance(trained(chunk=1, precision="bf16"), traced) == 0


def test_products_take_bf16_and_the_carry_stays_float32() -> None:
    seen = []

    def step(w: Tensor, x: Tensor) -> Tensor:
        product = w @ x
        seen.append(product.dtype)
        return w - 0.1 * product

    w, xs = torch.eye(3), torch.randn(2, 3, 3)
    out = Programs(precision="bf16")(step, w, xs, None)
    assert out.dtype == torch.float32
    assert set(seen) == {torch.bfloat16}
    assert in_precision(step, "float32") is step


@pytest.mark.parametrize(
    ("values", "remote", "words"),
    [
        ({"engine": {"name": "loop", "precision": "bf16"}}, False, "'loop' is the reference"),
        ({"engine": {"device": "cuda", "precision": "bf16"}}, False, "on the CPU only"),
        ({"engine": {"precision": "bf16"}}, True, "participants' machines"),
        ({"engine": {"precision": "bf16", "compile": True}}, False, "have not been tested"),
        (
            {"engine": {"precision": "bf16"}, "privacy": {"level": "example", "epsilon": 5.0}},
            False,
            "privacy.level = 'example'",
        ),
    ],
)
def test_where_it_is_refused(values: dict[str, Any], remote: bool, words: str) -> None:
    with pytest.raises(ConfigError, match="engine.precision = 'bf16'.*" + words):
        check_engine(api.make_config(None, **values), remote=remote)


def test_a_processor_without_instructions_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    config = api.make_config(None, **SHORT, engine={"precision": "bf16"})
    with pytest.raises(ConfigError, match="no instructions for bfloat16"):
        api.run(config, tmp_path / "run")


@pytest.mark.skipif(not has_bf16(), reason="this CPU has no instructions for bfloat16")
def test_a_run_uses_it(tmp_path: Any) -> None:
    def model(name: str, **engine: Any) -> bytes:
        api.run(api.make_config(None, **SHORT, engine=engine), tmp_path / name)
        return (tmp_path / name / "model" / "model.safetensors").read_bytes()

    half = model("half", precision="bf16")
    assert half == model("again", precision="bf16")
    assert half != model("plain")


def test_a_run_cannot_be_resumed_in_another_precision() -> None:
    plain, half = (
        api.make_config(None, **SHORT, engine={"precision": kind}) for kind in ("float32", "bf16")
    )
    assert plain.digest != half.digest
