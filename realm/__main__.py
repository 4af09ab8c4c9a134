"""`python -m realm`, and the installed command `realm`: see `realm/commands/main.py`."""

import sys

from realm.launch.signals import make_sane


def console() -> int:
    """Run the command line of this process; returns the exit code."""
    try:
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
