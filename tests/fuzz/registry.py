"""All fuzzers, by name."""

from __future__ import annotations

from fuzz import configs, federations, gates, run_folders, tables
from fuzz.fuzzer import Fuzzer

FUZZERS: dict[str, Fuzzer] = {
    fuzzer.name: fuzzer
    for module in (configs, tables, federations, run_folders, gates)
    for fuzzer in module.FUZZERS
}
