#!/usr/bin/env bash
# Ends every run of this folder, or one role: tools/stop.sh all|aisrv|actor|buffer|learner|model_pool|evaluator
source "$(dirname "$0")/setup.sh"
exec "$python" -m realm stop "${@:-all}"
