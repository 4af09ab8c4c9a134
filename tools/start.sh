#!/usr/bin/env bash
# Trains: makes .venv on a bare machine, starts the cluster, shows its progress; Ctrl+C ends it cleanly.
# tools/start.sh [--config conf/configure_app.toml] [--set key=value]... [--fresh] [--detach]
source "$(dirname "$0")/setup.sh"
exec "$python" -m realm start "$@"
