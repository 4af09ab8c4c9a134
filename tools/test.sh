#!/usr/bin/env bash
# Sets up and runs the tests: tools/test.sh [--setup-only | arguments for pytest]
source "$(dirname "$0")/setup.sh"
if [ "${1:-}" = "--setup-only" ]; then
    exit 0
fi
exec "$python" -m pytest "$@"
