#!/usr/bin/env bash
# Does faults to real runs and writes train/soak.md: tools/soak.sh [--only F27 ...] [--minutes 60] [--seed N]
# With --help it names all its options. All of it takes about two and a half hours.
source "$(dirname "$0")/setup.sh"
exec "$python" tools/soak/soak.py "$@"
