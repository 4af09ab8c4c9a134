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


def console() -> int:
    """Run the command line of this process; returns the exit code."""
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
