#!/usr/bin/env bash
# Makes the lock files again from pyproject.toml: tools/lock.sh [--upgrade]. It needs uv: pip install uv
# Without --upgrade each package keeps its version where that is possible.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="tools/lock.sh"
torch=requirements.torch.lock

# For every Python from 3.10 on and every system, with markers where they differ. Torch is the newest one that the tests ran
# with from 3.12 on, where reverb does not exist, and below the one that the figures in docs were measured with.
uv pip compile -q --universal --python-version 3.10 --no-deps "$@" -o $torch - << END
torch==2.13.0; python_version < '3.12'
torch==2.14.1; python_version >= '3.12'
END
uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-package torch -c $torch "$@" \
    --extra reverb -o requirements.lock pyproject.toml
# the extra `dev` with all that it needs, some of which is in requirements.lock, too
sed -n '/^dev = \[/{s///;s/\].*//;s/, */\n/g;s/"//g;p}' pyproject.toml |
    uv pip compile -q --universal --python-version 3.10 --generate-hashes -c requirements.lock "$@" \
        -o requirements.dev.lock -

# what CI installs besides, on its Python and system alone
there=$(sed -nE "/win32|< '3.11'/d; s/^([a-z0-9-]+)==.*/--no-emit-package \1/p" $torch requirements.lock \
    requirements.dev.lock)
# shellcheck disable=SC2086 # each word is an argument
uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes $there \
    -c $torch -c requirements.lock -c requirements.dev.lock "$@" --extra ci -o requirements.ci.lock pyproject.toml
