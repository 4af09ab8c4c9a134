#!/usr/bin/env bash
# Makes .venv with the locked requirements, once; sourced by the other scripts, which then use "$python".
# A second call costs nothing: .venv remembers which lock files it was made from. What you need yourself belongs into
# requirements.local.txt: it is installed next to the locked requirements, and again whenever .venv is made again.
# tools/test.sh sets `with_tests`: then checkers, pytest and plots are installed, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
unset PYTHONDONTWRITEBYTECODE # set in many images: each process would compile torch again, which takes it two seconds

# PIP_USER=0: a pip.conf that asks for --user would install outside of the environment. Python compiles what it imports;
# everything would be a tenth of the environment, and a minute.
install() {
    PIP_USER=0 "$python" -m pip install --disable-pip-version-check --no-input --no-compile "$@" >> "$log" 2>&1 && return
    if [ -n "${shows:-}" ]; then kill "$shows"; fi
    tail -n 20 "$log" >&2
    echo "error: installing $what failed (the last lines are above, all of it in $log)" >&2
    exit 2
}

# two scripts started at once make one environment, one after the other
mkdir -p .cache
exec 9> .cache/setup.lock
if command -v flock > /dev/null; then flock 9; fi

wanted=$(cat requirements.lock requirements.torch.lock | cksum)
if [ -e .venv ] && [ ! -e .venv/made-by-realm ]; then
    echo "error: there is a .venv here that Realm did not make; move it away and try again" >&2
    exit 2
fi
if [ "$(cat .venv/made-from 2>/dev/null || true)" != "$wanted" ]; then
    maker=""
    # 3.11 first: the newest Python that reverb exists for
    for one in python3.11 python3.10 python3.12 python3.13 python3; do
        if command -v "$one" > /dev/null && "$one" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; then
            maker=$one
            break
        fi
    done
    if [ -z "$maker" ]; then
        echo "error: no Python of version 3.10 or newer was found; install Python 3.11 (python3.11 must be on the PATH)" >&2
        exit 2
    fi
    for pid in $(pgrep -f '[.]venv/bin/python[0-9.]* (-m |[^ ]*/)realm (start|resume|sweep|host)' 2> /dev/null || true); do
        # started as .venv/bin/python in this folder; without /proc any of them counts
        if [ -e .venv ] && [ "$(readlink "/proc/$pid/cwd" 2> /dev/null || echo "$PWD")" = "$PWD" ]; then
            echo "error: the locked requirements have changed, but a run still uses .venv; end it first: .venv/bin/python -m realm stop all" >&2
            exit 2
        fi
    done
    echo "making .venv with $("$maker" --version) and installing requirements.lock (one to a few minutes, 2.6 GB with reverb) ..."
    rm -rf .venv
    mkdir .venv
    touch .venv/made-by-realm # first: whatever happens now, the next call may begin again
    if ! "$maker" -m venv .venv; then
        echo "error: '$maker -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2
        exit 2
    fi
    log=.venv/install.log
    shows="" # the process that shows how much is there, in a terminal
    if [ -t 1 ]; then
        while sleep 2 && kill -0 $$ 2> /dev/null; do
            printf '\r%s MB ' "$(du -sm .venv 2> /dev/null | cut -f1)"
        done 9>&- &
        shows=$!
    fi
    # The lock names every file by its hash, and everything that a package needs. Torch has no hash: its CPU build and its
    # CUDA build have one number, and pip would take a build that is listed before a better one in a folder of wheels.
    what=requirements.lock install -r requirements.lock --require-hashes --no-deps
    what=requirements.torch.lock install -r requirements.torch.lock
    echo "$wanted" > .venv/made-from
    if [ -n "$shows" ]; then kill "$shows" && printf '\r' && shows=""; fi
    echo "installed: $(du -sm .venv | cut -f1) MB in $SECONDS s"
fi
if [ ! -e .venv/locked.txt ]; then # without hashes, as pip takes constraints: what is locked keeps its version
    sed -nE '/^[a-z0-9]/{s/ *\\$//;p;}' requirements.{,torch.,dev.}lock | sort -u > .venv/locked.txt
fi
tests=$(cksum < requirements.dev.lock)
if [ -n "${with_tests:-}" ] && [ "$(cat .venv/made-from-tests 2> /dev/null || true)" != "$tests" ]; then
    log=.venv/install-tests.log what=requirements.dev.lock
    install -r requirements.dev.lock --require-hashes --no-deps
    echo "$tests" > .venv/made-from-tests
fi
own=""
if [ -e requirements.local.txt ]; then own=$(cksum < requirements.local.txt); fi
if [ "$(cat .venv/made-from-local 2>/dev/null || true)" != "$own" ]; then
    if [ -n "$own" ]; then
        echo "installing requirements.local.txt ..."
        log=.venv/install-local.log what=requirements.local.txt
        install -c .venv/locked.txt -r requirements.local.txt
        echo "installed"
    fi
    echo "$own" > .venv/made-from-local
fi
if [ ! -e .venv/knows-checkout2 ]; then
    # `import realm` and the command `realm` of this checkout, from any folder
    for site in .venv/lib/python3.*/site-packages; do
        echo ../../../.. > "$site/checkout.pth"
    done
    # a script for sh and, below, for Python; not `-m`, which looks for modules where the user stands first
    cat > .venv/bin/realm << 'END'
#!/bin/sh
'''exec' "$(dirname "$0")/python" "$0" "$@"
' '''
import sys

from realm.__main__ import console

if __name__ == "__main__":
    sys.exit(console())
END
    chmod +x .venv/bin/realm
    touch .venv/knows-checkout2
fi
exec 9>&-
export NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR:-$PWD/.cache/numba}"
