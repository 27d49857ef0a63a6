"""`doctor`: what is installed, what this machine has, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from isonomy.cli import shell
from isonomy.cli.printing import print_columns, print_line

PURPOSES = {  # of the extras; one without an entry is listed by its name
    "images": "CelebA's images",
    "text": "texts as vectors of a pretrained encoder: features = 'sentences'",
    "onnx": "isonomy export --onnx",
    "flower": "a real federation: isonomy serve, isonomy join",
    "tune": "isonomy tune, and settings beyond the defaults in isonomy decide",
    "arrow": "tables from memory, results as arrow tables",
    "pandas": "pandas frames, from memory and as results",
    "polars": "polars frames, from memory and as results",
    "sklearn": "isonomy.FairFederatedClassifier",
    "mlflow": "--track mlflow",
    "tensorboard": "--track tensorboard",
    "wandb": "--track wandb",
    "privacy": "differential privacy (privacy.level) and isonomy audit",
}
DEVELOPING = {"dev", "docs"}  # extras that users do not need


class Finding(NamedTuple):
    """One line of the table. `problem` says what to do; it is empty if nothing is wrong."""

    what: str
    value: str
    problem: str = ""


def doctor(
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Run every algorithm on this device ('cuda', 'mps' or 'cpu') and compare it with "
            "the CPU.",
        ),
    ] = None,
) -> None:
    """Show versions, devices, the cache, and what is missing and how to get it.

    The exit code is 1 if something that every run needs is missing or cannot be used, or if an
    algorithm gives another result on the device.

    Example: isonomy doctor

    Example: isonomy doctor --device cuda
    """
    out = shell.console()
    if device is not None:
        _check_device(out, device)
        return
    required = [*_software(), *_machine(), *_cache()]
    print_columns(out, "Installation", ("what", "found"), [finding[:2] for finding in required])
    print_columns(
        out,
        "Optional parts",
        ("extra", "needed for", "found", "how to get it"),
        [_extra(name, needs) for name, needs in _extras().items()],
    )
    problems = [f"{finding.what}: {finding.problem}" for finding in required if finding.problem]
    for problem in problems:
        print_line(out, f"Problem: {problem}")
    if problems:
        raise typer.Exit(1)
    print_line(out, "No problems.")


def _check_device(out: Any, name: str) -> None:
    """Compare every algorithm on a device with the CPU; exit code 1 if one differs."""
    from isonomy.engines.devices import Name
    from isonomy.errors import ConfigError, unknown
    from isonomy.runs.device_check import check_device

    # not "auto", which may be the CPU: then nothing would be compared
    known = {one: one for one in get_args(Name) if one != "auto"}
    if name not in known:
        raise ConfigError(unknown("device", name, known))
    wrong = 0
    for found in check_device(known[name]):
        print_line(out, f"{found.algorithm}: {found.problem or 'the same as on the CPU'}")
        wrong += found.problem is not None
    if wrong:
        print_line(out, f"{wrong} algorithms do not work on '{name}'; please report this.")
        raise typer.Exit(1)


def _software() -> Iterator[Finding]:
    import isonomy

    yield Finding("isonomy", f"{isonomy.__version__} in {Path(isonomy.__file__).parent}")
    version = platform.python_version()
    old = "" if sys.version_info >= (3, 11) else "isonomy needs Python 3.11 or newer."
    yield Finding("Python", f"{version} in {sys.prefix}", old)
    for requirement in _requirements():
        yield _package(requirement)
    yield _tracing()


def _package(requirement: str) -> Finding:
    """A required package: its version, and whether it is in the range that isonomy states."""
    name = _name(requirement)
    found = _version(name)
    if found is None:
        return Finding(name, "missing", f"run `pip install '{requirement}'`.")
    if not _in_range(requirement, found):
        return Finding(
            name, found, f"isonomy needs {requirement}; run `pip install '{requirement}'`."
        )
    return Finding(name, found)


def _tracing() -> Finding:
    """Whether this torch can trace local training, which makes rounds fast."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the finding below says the same
        from isonomy.engines.batched.runner import problem

        found = problem()
    if found is None:
        return Finding("traced training", "works")
    advice = "training works, but more slowly; install a version of torch that isonomy supports."
    return Finding("traced training", found, advice)


def _machine() -> Iterator[Finding]:
    import torch

    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    cores = os.cpu_count() or 1
    yield Finding("cores", f"{cores}, of which torch uses {torch.get_num_threads()}")
    yield Finding("memory", _memory())
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA devices", ", ".join(names))
    else:
        yield Finding("CUDA devices", "none; training runs on the CPU")
    compiler = (
        shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
    )
    yield Finding("C++ compiler", compiler or "none; only engine.compile = true needs one")


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return "not known on this system"
    return f"{pages * size / 1e9:.1f} GB"


def _cache() -> Iterator[Finding]:
    from isonomy.cli.data.downloads import cached_choice
    from isonomy.data.datasets import DATASETS
    from isonomy.data.download.fetch import folder

    cache = folder()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    writable = os.access(existing, os.W_OK)
    advice = "" if writable else "set ISONOMY_DATA to a folder that you can write to."
    yield Finding("cache", f"{cache}, {free:.1f} GB free", advice)
    files = {name: dataset.files for name, dataset in DATASETS.items() if dataset.files}
    held = [name for name in sorted(files) if cached_choice(files[name], cache)]
    names = f": {', '.join(held)}" if held else "; isonomy data get NAME downloads one"
    yield Finding("data sets in it", f"{len(held)} of {len(files)}{names}")


def _extra(name: str, needs: Sequence[str]) -> tuple[str, str, str, str]:
    found = {package: _version(package) for package in map(_name, needs)}
    shown = ", ".join(f"{package} {version}" for package, version in found.items() if version)
    how = "" if all(found.values()) else f"pip install 'isonomy[{name}]'"
    return name, PURPOSES.get(name, ""), shown or "missing", how


def _requirements() -> list[str]:
    """The required packages with their ranges."""
    return [one for one in metadata.requires("isonomy") or [] if "extra ==" not in one]


def _extras() -> dict[str, list[str]]:
    """The packages of each optional extra."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("isonomy") or []:
        requirement, _, marker = line.partition(";")
        if "extra ==" in marker:
            name = marker.split("extra ==")[1].strip(" '\"")
            found.setdefault(name, []).append(requirement.strip())
    return {name: needs for name, needs in found.items() if name not in DEVELOPING}


def _name(requirement: str) -> str:
    """The name of the package in a requirement.

    >>> _name("torch<2.16,>=2.13"), _name("mkdocstrings[python]>=1")
    ('torch', 'mkdocstrings')
    """
    end = next((i for i, c in enumerate(requirement) if c in "<>=!~[ ;"), len(requirement))
    return requirement[:end]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _in_range(requirement: str, version: str) -> bool:
    """Whether a version is in the range of a requirement, by its numbers.

    >>> _in_range("torch<2.16,>=2.13", "2.13.0+cpu"), _in_range("torch<2.16,>=2.13", "2.16.0")
    (True, False)
    """
    bounds = requirement[len(_name(requirement)) :].split(",")
    have = _numbers(version)
    for bound in bounds:
        low, high = bound.startswith(">="), bound.startswith("<") and not bound.startswith("<=")
        if low and have < _numbers(bound[2:]):
            return False
        if high and have >= _numbers(bound[1:]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> _numbers("2.13.0+cpu"), _numbers("3.0rc1")
    ((2, 13, 0), (3, 0))
    """
    found = []
    for part in version.strip().split("+")[0].split("."):
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)
