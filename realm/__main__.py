"""`python -m realm`: see `realm/commands/main.py`."""

import sys

if __name__ == "__main__":
    try:
        from realm.commands.main import main
    except KeyboardInterrupt:  # while the modules are imported
        sys.exit(130)
    sys.exit(main(sys.argv[1:]))
