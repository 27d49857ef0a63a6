import time

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("isonomy", deadline=None, derandomize=True, database=None)
settings.load_profile("isonomy")

_begin = time.monotonic()


@pytest.fixture(autouse=True)
def no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins without code that it trusts."""
    monkeypatch.setenv("ISONOMY_TRUST", "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long the tests took, also with -q."""
    minutes, seconds = divmod(round(time.monotonic() - _begin), 60)
    terminalreporter.write_line(f"The tests took {minutes} min {seconds} s.")
