#!/usr/bin/env bash
# Sets up and runs the tests: tools/test.sh [--all] [--setup-only | arguments for pytest]
# Without --all it leaves out those marked `slow`, and takes a few minutes.
with_tests=1 source "$(dirname "$0")/setup.sh"
case "${1:-}" in
    --setup-only) exit 0 ;;
    --all) shift ;;
    *) set -- -m "not slow" "$@" ;;
esac
exec "$python" -m pytest -n 3 "$@"  # three at a time, since some wait; -n 0 for a debugger
