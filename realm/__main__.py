"""`python -m realm`: see `realm/commands/main.py`."""

import sys

from realm.commands.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
