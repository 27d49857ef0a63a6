"""A short run of each fuzzer, and the cases that once found bugs; `make fuzz` runs more."""

from __future__ import annotations

import pytest

from fuzz.fuzzer import Fuzzer, ready, run
from fuzz.registry import FUZZERS

SHORT = 12  # cases


@pytest.mark.parametrize("fuzzer", FUZZERS.values(), ids=FUZZERS)
def test_a_few_cases(fuzzer: Fuzzer) -> None:
    with ready(fuzzer) as one:
        for path in fuzzer.corpus():
            one(path.read_bytes())
    found = run(fuzzer, cases=SHORT, first_seed=1)
    assert found.cases >= SHORT
    assert not found.bugs, "\n".join(found.texts.values())
