"""Environment variables of a process: threads, allocator, devices, log noise. They must be set before it starts.

The supervisor uses them for each role and for the fork server. Allocator and OpenMP read theirs only once, so forks
keep the learner's. A one-process run starts itself again with them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from realm.config.plan import Plan
from realm.roles.table import ROLES, holds_weights


def for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a new Python that imports Realm: it must not look into the current directory first, where a file of
    the user's may have the name of a module that it needs. Whoever starts there takes PYTHONSAFEPATH away again."""
    is_checkout = os.path.isdir("realm")  # perhaps Realm is found there and nowhere else
    return {**environment, **({} if is_checkout else {"PYTHONSAFEPATH": "realm"})}


def role_environment(role: str, plan: Plan | None) -> dict[str, str]:
    """This process's variables, updated for a role's process. plan: None on a host that does not know it yet."""
    threads = str(plan.learner_threads if plan and role == "learner" else 1)
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",  # NumPy starts these threads at import, and the fork server must have none
        "NUMBA_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if role == "learner":
        # waiting threads sleep (see realm/__init__.py), but a gradient step has a hundred barriers, and sleeping at
        # each costs a fifth of its time; 3000 spins take about 10 us, and most barriers are over by then
        environment["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "3000")
    if role == "buffer" or plan is None or holds_weights(role, plan):
        # otherwise glibc returns large blocks to the system after every batch: twice the time on a CPU
        environment |= {
            "MALLOC_MMAP_THRESHOLD_": "1073741824",
            "MALLOC_TRIM_THRESHOLD_": "1073741824",
            "MALLOC_TOP_PAD_": "67108864",
        }
    if not ROLES[role].device:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a CUDA context takes half a gigabyte of the device
    return environment


def enter_learner_environment(plan: Plan) -> None:
    """Restart this process (exec) with a learner's variables, unless it has them already.

    Under a debugger, which would lose the process, it does nothing; that only costs speed.
    """
    environment = role_environment("learner", plan)
    debugged = sys.gettrace() is not None or "debugpy" in sys.modules or "pydevd" in sys.modules
    if environment != dict(os.environ) and not debugged:
        # an interpreter that starts would make a traceback of it; `make_sane` lets it through
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], for_python(environment))
