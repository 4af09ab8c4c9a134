#!/usr/bin/env bash
# Makes the lock files again from pyproject.toml: tools/lock.sh [--upgrade]. It needs uv: pip install uv
# Without --upgrade each package keeps its version where that is possible.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="tools/lock.sh"
torch=requirements.torch.lock

# for every Python from 3.10 on and every system, with markers where they differ
uv pip compile -q --universal --python-version 3.10 --no-deps "$@" -o $torch - <<< torch
uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-package torch -c $torch "$@" \
    --extra dev --extra reverb -o requirements.lock pyproject.toml

# what CI installs besides, on its Python and system alone
there=$(sed -nE "/win32|< '3.11'/d; s/^([a-z0-9-]+)==.*/--no-emit-package \1/p" $torch requirements.lock)
# shellcheck disable=SC2086 # each word is an argument
uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes $there \
    -c $torch -c requirements.lock "$@" --extra ci -o requirements.ci.lock pyproject.toml
