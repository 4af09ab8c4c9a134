"""What the fork server imports before it forks: torch, and the roles that hold weights. Imported there alone."""

import contextlib
import gc
import os
import signal

import setproctitle

os.setsid()  # a signal of the terminal is for the supervisor, which ends its roles in order
signal.signal(signal.SIGHUP, signal.SIG_IGN)
setproctitle.setproctitle("realm fork server")
gc.disable()  # nothing that is imported is garbage
with contextlib.suppress(ImportError):  # a role that needs it says so, in its own log
    import realm.learn.checkpoint
    import realm.roles.aisrv
    import realm.roles.learner  # noqa: F401
gc.freeze()  # a collection in a fork would write into all these objects, and so end their being shared
