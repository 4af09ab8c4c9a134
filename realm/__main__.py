"""`python -m realm`, and the installed command `realm`: see `realm/commands/main.py`."""

import _signal  # type: ignore[import-not-found]  # not `signal`, which imports more
import os
import sys

try:
    _here = os.getcwd()
except FileNotFoundError:
    _here = ""
# `python -m` puts the current directory first, where a file of the user's may have the name of a module that is needed.
# It comes back when the user's package is loaded (`realm/user.py: search_path`)
if os.environ.get("PYTHONSAFEPATH") == "realm":  # what `realm/launch/environment.py: for_python` says is for us alone
    del os.environ["PYTHONSAFEPATH"]
elif sys.path[0] in ("", _here) and not os.path.isdir(os.path.join(sys.path[0], "realm")):
    del sys.path[0]

_LAST_S = 2.0  # of threads that user code has left


def console() -> int:
    """Run the command line of this process; returns the exit code."""
    code = _run()
    _leave_threads(code)
    return code


def _leave_threads(code: int) -> None:
    """End the process if threads of the user's, such as a simulator's, would keep it alive when all is done."""
    import atexit  # these are late, too: the user's folder may have a file of such a name
    import threading
    import time

    until = time.monotonic() + _LAST_S
    left = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    for thread in left:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        atexit._run_exitfuncs()
        os._exit(code)  # `main` has written all that there was


def _run() -> int:
    if not _here:
        print("error: the current directory was deleted; go to one that is there", file=sys.stderr)
        return 2
    try:
        # Ctrl+C waits until `make_sane`: an import that it interrupts is a traceback
        _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])
        from realm.launch.signals import make_sane

        make_sane()
        from realm.commands.main import main

        return main(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "realm").startswith("realm"):
            raise
        print(f"error: {error.name} is not installed in {sys.executable}; tools/setup.sh installs it", file=sys.stderr)
        return 2
    except ImportError as error:
        text = " ".join(str(error).split())[:300]
        print(f"error: {text}; packages do not fit each other: remove .venv and call tools/setup.sh", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(console())
