"""realm/apart.py: what user code changes in its process is set back for everybody else."""

from __future__ import annotations

import gc
import locale
import os
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from loguru import logger

from realm.apart import apart

CHANGES = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.zeros(1).device),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "determinism": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "errstate": (lambda: np.seterr(all="raise"), np.geterr),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: any(one[0] == "error" for one in warnings.filters)),
    "umask": (lambda: os.umask(0o777), lambda: os.umask(os.umask(0o022))),
    "signal": (lambda: signal.signal(signal.SIGTERM, print), lambda: signal.getsignal(signal.SIGTERM)),
    "ignored": (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGINT)),
    "output": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
    "recursion": (lambda: sys.setrecursionlimit(400), sys.getrecursionlimit),
    "garbage": (gc.disable, gc.isenabled),
    "locale": (lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), lambda: locale.setlocale(locale.LC_NUMERIC)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_user_code_changes_is_set_back(name):
    change, look = CHANGES[name]
    before = look()
    with apart():
        change()
    assert look() == before


def test_a_log_that_was_taken_away_comes_back_and_a_new_one_stays():
    seen, own = [], []
    number = logger.add(seen.append, format="{message}")
    try:
        with apart():
            logger.remove()
            logger.add(own.append, format="{message}")
        logger.warning("here")
        assert (seen, own) == (["here\n"], ["here\n"])
        assert number
    finally:
        logger.remove()
        logger.add(sys.stderr)


@pytest.mark.parametrize("most", [1, 200])
def test_closed_descriptors_are_open_again(most):
    """In a fork, since pytest needs its own."""
    child = os.fork()
    if child == 0:
        with apart():
            os.closerange(0, 3 if most == 1 else most)
        for number in range(3):
            os.fstat(number)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_where_nothing_lives_on_the_folder_and_the_variables_are_set_back_too(tmp_path):
    here, variables = os.getcwd(), dict(os.environ)
    with apart(over=True):
        os.chdir(tmp_path)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        with apart():
            os.chdir("/")
        assert os.getcwd() == "/"  # a simulator may need it
    assert (os.getcwd(), dict(os.environ)) == (here, variables)
