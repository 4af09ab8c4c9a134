"""The fork server imports this module before it forks: torch and the roles with weights. Imported nowhere else."""

import contextlib
import gc
import os
import signal

import setproctitle

from realm.launch.guard import when_parent_ends

os.setsid()  # terminal signals go to the supervisor, which ends its roles in order; others are held back (`place`)
when_parent_ends(signal.SIGKILL)  # its forks hold its pipe, so a stopped one would keep it alive
setproctitle.setproctitle("realm fork server")
gc.disable()  # imports make no garbage
with contextlib.suppress(ImportError):  # a role that needs the module reports the error in its own log
    import realm.roles.aisrv
    import realm.roles.learner  # noqa: F401
gc.freeze()  # a collection in a fork would write to all these objects and so copy their memory
