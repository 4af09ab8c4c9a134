#!/usr/bin/env bash
# Does every fault to real runs and writes docs/reliability.md: tools/soak.sh [--only F27 ...] [--minutes 60] [--seed N]
# With --help it names all its options. All of it takes about three hours.
source "$(dirname "$0")/setup.sh"
exec "$python" tools/soak/soak.py "$@"
