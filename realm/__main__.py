"""`python -m realm`: see `realm/commands/main.py`."""

import sys

if __name__ == "__main__":
    try:
        from realm.commands.main import main
    except KeyboardInterrupt:  # while the modules are imported
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "realm").startswith("realm"):
            raise
        print(f"error: {error.name} is not installed in {sys.executable}; tools/setup.sh installs it", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
