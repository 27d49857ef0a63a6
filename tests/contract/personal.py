"""In what limit each personal algorithm equals which other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.client_fair.fedfv import FedFV
from isonomy.algorithms.personal.apfl import APFL
from isonomy.algorithms.personal.blend import Blend
from isonomy.algorithms.personal.ewc import EWC
from isonomy.algorithms.personal.finetune import Finetune
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.algorithms.personal.l2sgd import L2SGD
from isonomy.algorithms.personal.l2sgd_running import L2SGDRunning
from isonomy.algorithms.personal.local import Local
from isonomy.algorithms.personal.mapper import Mapper
from isonomy.algorithms.personal.perfedavg import PerFedAvg
from isonomy.algorithms.personal.symmetric_kl import SymmetricKL
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, check, close, field, named, run, same_bits
from isonomy.contract.world import world
from isonomy.core.algorithm import Algorithm

EQUAL = FedAvg(weight="equal")


def _outputs(got: Outcome) -> Any:
    return got.outputs


def _server(got: Outcome) -> Any:
    return named(got.server)


def _server_and_outputs(got: Outcome) -> Any:
    return named(got.server), got.outputs


def _personal(got: Outcome) -> Any:
    return field(got.states, "params")


@check
def check_same_finish(
    one: Algorithm,
    other: Algorithm,
    transport: Transport,
    *,
    exactly: bool = True,
    part: Callable[[Outcome], Any] = _server_and_outputs,
) -> None:
    """Two algorithms leave the same server and predictions after the last phase."""
    got, expected = (part(run(a, transport, world(), finish=True)) for a in (one, other))
    (same_bits if exactly else close)(got, expected, f"{one}")


def fmtl(transport: Transport) -> None:
    """lam = 0 is local training; whatever lam is, the global model is FedAvg's."""
    for options in ({}, {"anchor": "moving"}, {"pull": "proximal"}):
        none = FMTL(lam=0.0, **options)  # type: ignore[arg-type]
        check_same_run(none, Local(), transport, part=_personal)
        check_same_run(none, Local(), transport, part=_outputs)
    check_same_run(FMTL(lam=1.5), EQUAL, transport, part=_server)
    check_same_run(FMTL(lams=(0.1, 2.0), weight="size"), FedAvg(), transport, part=_server)
    check_same_run(FMTL(lam=0.7, lams=(0.7,)), FMTL(lam=0.7), transport)
    check_same_run(FMTL(lam=0.7, lams=(2.0,), least=1000), FMTL(lam=0.7), transport)


def finetune(transport: Transport) -> None:
    """Until the last phase it is FedAvg."""
    check_same_run(Finetune(), EQUAL, transport, part=_server_and_outputs)
    check_same_run(Finetune(weight="size"), FedAvg(), transport, part=_outputs)


def blend(transport: Transport) -> None:
    """Until the last phase FedFV, after it too with shares of 0; with shares of 1, fine-tuning."""
    fair = FedFV(alpha=0.3, tau=0)
    check_same_run(Blend(alpha=0.3), fair, transport, part=_outputs)
    none = Blend(alpha=0.3, shares=(0.0,), share=0.0, steps=2)
    check_same_finish(none, fair, transport, part=_outputs)
    whole = Blend(alpha=1.0, shares=(1.0,), share=1.0, steps=2)
    check_same_finish(whole, Finetune(steps=2), transport, exactly=False, part=_outputs)


def ewc(transport: Transport) -> None:
    """Without pull it is plain fine-tuning."""
    for pull in ("gradient", "proximal"):
        check_same_finish(EWC(lam=0.0, steps=3, pull=pull), Finetune(steps=3), transport)


def symmetric_kl(transport: Transport) -> None:
    """Without pull it is plain fine-tuning."""
    check_same_finish(SymmetricKL(lam=0.0, epochs=2), Finetune(epochs=2), transport)


def apfl(transport: Transport) -> None:
    """alpha = 0 is FedAvg, alpha = 1 local training."""
    check_same_run(APFL(alpha=0.0), EQUAL, transport, part=_server_and_outputs)
    check_same_run(APFL(alpha=1.0), Local(), transport, part=_outputs)


def l2sgd(transport: Transport) -> None:
    """lam = 0 with a coin that never falls is local training."""
    check_same_run(L2SGD(lam=0.0, p=1e-9), Local(), transport, part=_outputs)


def l2sgd_running(transport: Transport) -> None:
    """lam = 0 is local training."""
    check_same_run(L2SGDRunning(lam=0.0), Local(), transport, part=_outputs)


def perfedavg(transport: Transport) -> None:
    """alpha = 0 on the same batch is FedAvg, before and after the last phase."""
    none = PerFedAvg(alpha=0.0, batches="same")
    check_same_run(none, EQUAL, transport, part=_server_and_outputs)
    check_same_finish(none, EQUAL, transport)


def mapper(transport: Transport) -> None:
    """Shares of 0 are FedAvg, of 1 local training."""
    check_same_run(Mapper(shares=(0.0,)), EQUAL, transport, part=_outputs)
    check_same_run(Mapper(shares=(1.0,)), Local(), transport, part=_outputs)
