import subprocess
import sys

CODE = """
import gc
from isonomy.cli import start_and_exit
start_and_exit.AT_START = 5_000
usual = gc.get_threshold()
start_and_exit.collect_less()
assert gc.get_threshold()[0] == 5_000 and gc.get_freeze_count() == 0
kept = [[] for _ in range(6_000)]
assert gc.get_threshold() == usual and gc.get_freeze_count() >= 5_000
assert start_and_exit.__name__ not in str(gc.callbacks)
class Ring:
    def __del__(self): print("collected")
ring = Ring(); ring.own = ring; del ring
kept += [[] for _ in range(2_000)]
"""


def test_garbage_is_collected_after_the_start():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "collected\n"


LONG = """
import gc
from isonomy.cli import start_and_exit
usual = gc.get_threshold()
start_and_exit.collect_less()
class Ring:
    def __del__(self): print("collected")
ring = Ring(); ring.own = ring; del ring
start_and_exit.collect_as_usual()
assert gc.get_threshold() == usual and gc.get_freeze_count() > 0
ring = Ring(); ring.own = ring; del ring
kept = [[] for _ in range(2_000)]
"""


def test_a_command_that_runs_long_collects_as_usual():
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    assert done.stdout == "collected\ncollected\n"
