"""Threads: they change no byte, and a process that forks after using them leaves its children able to work."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARE = """
import multiprocessing, os, signal
import numpy as np
import perbit

x = np.arange((1 << 21) + 5, dtype=np.float32)

def same(_=None):
    signal.alarm(60)  # a child that waits for threads it does not have is ended, and the test fails
    return perbit.get_threads() == 2 and perbit.encode(x, "uniform(4) | rans") == frame

perbit.set_threads(2)
frame = perbit.encode(x, "uniform(4) | rans")
"""
FORK = """
child = os.fork()
if child == 0:
    os._exit(0 if same() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert same()
"""
POOL = """
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.apply_async(same).get(timeout=60)
"""
GRANDCHILD = """
child = os.fork()
if child == 0:
    same()
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if same() else 1)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
ONE_THREAD = """
perbit.set_threads(1)
child = os.fork()
if child == 0:
    os._exit(0 if perbit.get_threads() == 1 and perbit.encode(x, "uniform(4) | rans") == frame else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("fork", [FORK, POOL, GRANDCHILD, ONE_THREAD], ids=["fork", "pool", "grandchild", "one thread"])
def test_a_forked_child_has_threads_of_its_own(fork: str) -> None:
    done = subprocess.run([sys.executable, "-c", PREPARE + fork], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
