"""`python -m realm`: see `realm/cli.py`."""

import sys

from realm.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
