#!/usr/bin/env bash
# Shows the living runs of this folder and their roles.
source "$(dirname "$0")/setup.sh"
exec "$python" -m realm status "$@"
