"""Environment variables of a process: threads, allocator, devices, noise. They count only before a process starts.

Used by the supervisor for each role and for the fork server, whose forks have the learner's allocator and OpenMP, since
these read them only once; and by a one-process run, which starts itself again with them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from realm.config.plan import Plan
from realm.roles.table import ROLES, holds_weights


def role_environment(role: str, plan: Plan) -> dict[str, str]:
    """This process's variables with those of a role's process."""
    threads = str(plan.learner_threads if role == "learner" else 1)
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's; its threads begin with the import, when the fork server must have none
        "NUMBA_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(Path(".cache/numba").absolute())),
    }
    if role == "learner":
        # threads sleep where they wait for each other (see realm/__init__.py), but at each of the hundred meetings of a
        # gradient step that costs a fifth of the time; so many turns are about 10 us, which is what most meetings take
        environment["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "3000")
    if role == "buffer" or holds_weights(role, plan):
        # glibc gives large blocks back to the system after every batch otherwise: twice the time on a CPU
        environment |= {
            "MALLOC_MMAP_THRESHOLD_": "1073741824",
            "MALLOC_TRIM_THRESHOLD_": "1073741824",
            "MALLOC_TOP_PAD_": "67108864",
        }
    if not ROLES[role].device:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a CUDA context takes half a gigabyte of the device
    return environment


def enter_learner_environment(plan: Plan) -> None:
    """Replace this process by itself with a learner's variables, unless it has them already. Does not return then.

    Not under a debugger, which would lose the process: there it only costs speed.
    """
    environment = role_environment("learner", plan)
    debugged = sys.gettrace() is not None or "debugpy" in sys.modules or "pydevd" in sys.modules
    if environment != dict(os.environ) and not debugged:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
