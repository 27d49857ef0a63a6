"""What a phase may not do under `vmap`, said in terms of the phase and not of torch."""

from __future__ import annotations

from isonomy.core.cohort import Ask
from isonomy.errors import IsonomyError

_LOOP = 'or run it one client at a time with engine = "loop"'
_CAUSES = {  # a part of torch's message, what the phase does, and what to do instead
    "calling .item()": (
        "takes a number out of a tensor (.item(), float() or int()), which is another number for "
        "every client; compute with tensors instead",
        _LOOP,
    ),
    "data-dependent control flow": (
        "uses a tensor in `if`, `while` or `bool()`, which differs between clients; use "
        "torch.where instead",
        _LOOP,
    ),
    "random operation": (
        "draws random numbers with torch, which a resumed run could not repeat; use "
        "client.uniform(name, shape) or client.normal(name, shape)",
        "",
    ),
    "dynamic shape": (
        "makes a tensor whose shape depends on a client's values (nonzero, unique or a boolean "
        "index); multiply by a 0/1 weight instead",
        _LOOP,
    ),
    "doesn't support float64": (
        "uses double precision, which this device does not have",
        "set engine.device = 'cpu'",
    ),
    "doesn't have storage": (
        "converts a tensor to NumPy or to a list; compute with tensors instead",
        _LOOP,
    ),
}


def explained(error: RuntimeError, ask: Ask) -> IsonomyError | None:
    """The error that says what the phase does wrong; None for an error of another kind."""
    for words, (what, otherwise) in _CAUSES.items():
        if words in str(error):
            name = getattr(ask.phase, "__name__", "phase")
            owner = type(getattr(ask.phase, "__self__", None))
            of = f" of {owner.__name__}" if owner is not type(None) else ""
            last = f", {otherwise}" if otherwise else ""
            return IsonomyError(f"phase '{name}'{of} {what}{last}.")
    return None
