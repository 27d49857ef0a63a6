"""Ranks on two hosts: two network namespaces, joined by a virtual cable."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_workers import result, rounds_done, shared

from isonomy.runs.training import run

pytestmark = pytest.mark.slow
HOSTS = ("isonomy-a", "isonomy-b")


def ip(*words: str) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def hosts():
    """Two hosts, 10.77.0.1 and 10.77.0.2, that reach each other and nothing else."""
    if sys.platform != "linux" or not Path("/usr/sbin/ip").exists() or os.getuid():
        pytest.skip("needs root and the command ip")
    for host in HOSTS:
        ip("netns", "del", host)
    if not all(ip("netns", "add", host) for host in HOSTS):
        pytest.skip("this machine does not let us make network namespaces")
    try:
        a, b = HOSTS
        assert ip("-n", a, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", b)
        for number, host in enumerate(HOSTS, 1):
            assert ip("-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            assert ip("-n", host, "link", "set", "cable", "up")
            assert ip("-n", host, "link", "set", "lo", "up")
        yield HOSTS
    finally:
        for host in HOSTS:
            ip("netns", "del", host)


def start(host: str, number: int, *words: str) -> subprocess.Popen:
    """One rank on a host."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launch += [f"--node-rank={number}", "--master-addr=10.77.0.1", "--master-port=29517"]
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *launch, "-m", "isonomy.cli", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_hosts_give_the_bytes_of_one_process(tmp_path, hosts):
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(shared({"name": "distributed"}).toml())
    words = ("run", str(config), "--to", str(folder), "--no-report")
    started = [start(host, number, *words) for number, host in enumerate(hosts)]
    told = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    run(shared({}), tmp_path / "alone")
    assert result(folder) == result(tmp_path / "alone")


def test_a_cut_cable_ends_both_hosts_with_a_sentence(tmp_path, hosts):
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    wanted = shared({"name": "distributed", "timeout": 30.0}).model_copy(update={"rounds": 5000})
    config.write_text(wanted.toml())
    words = ("run", str(config), "--to", str(folder), "--no-report")
    started = [start(host, number, *words) for number, host in enumerate(hosts)]
    try:
        while rounds_done(folder) < 3:
            assert all(process.poll() is None for process in started)
            time.sleep(0.1)
        assert ip("-n", hosts[0], "link", "set", "cable", "down")
        begin = time.monotonic()
        told = started[0].communicate(timeout=200)[0]
        assert time.monotonic() - begin < 150
        assert started[0].returncode
        assert "did not answer within 30 s (engine.timeout); continue from the last" in told
    finally:
        for process in started:
            process.kill()
            process.communicate()
