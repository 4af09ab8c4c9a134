#!/usr/bin/env bash
# Installs the peers that tools/bench/train.py compares with, each into an environment of its own:
#   tools/bench/peers.sh [NAME ...]      all that tools/bench/peers/ has, or these
# .cache/peers/<name> holds the environment; a file `failed` in it says why a peer could not be installed. What a peer
# needs stands in its script, in the lines `# requires:` and, installed last and without a look at what others ask for,
# `# afterwards:`. A second call does only what is missing.
source "$(dirname "$0")/../setup.sh"
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

if [ $# -gt 0 ]; then
    names=("$@")
else
    names=()
    for script in tools/bench/peers/*.py; do
        if grep -q '^# requires:' "$script"; then names+=("$(basename "$script" .py)"); fi
    done
fi

# torch as the project has it: the same build for everybody
torch=$("$python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch").split("+")[0])')
shared="numba numpy gymnasium msgspec loguru pyyaml pillow psutil setuptools"  # what diy's environments import

# one peer, in a subshell
install() {
    set -e
    options=""
    if [ -e "tools/bench/peers/$name.sh" ]; then source "tools/bench/peers/$name.sh"; fi
    # shellcheck disable=SC2086  # words
    "$folder/bin/python" -m pip install --no-input $options $wanted $shared
    if [ -n "$afterwards" ]; then
        # although the peer asks for an older one
        "$folder/bin/python" -m pip install --no-input --no-deps $afterwards
    fi
}

failed=0
for name in "${names[@]}"; do
    script=tools/bench/peers/$name.py folder=.cache/peers/$name
    if ! requires=$(sed -n 's/^# requires: //p' "$script" 2> /dev/null) || [ -z "$requires" ]; then
        echo "error: there is no peer '$name' (no line '# requires:' in $script)" >&2
        exit 2
    fi
    afterwards=$(sed -n 's/^# afterwards: //p' "$script")
    wanted="$torch $requires"
    if [ "$(cat "$folder/installed" 2> /dev/null || true)" = "$wanted $afterwards" ]; then
        echo "$name: is installed"
        continue
    fi
    echo "$name: installing $wanted (minutes) ..."
    rm -rf "$folder"
    mkdir -p .cache/peers
    "$python" -m venv "$folder"
    # not as a condition, which would make `set -e` idle in it
    set +e
    (install) > "$folder/install.log" 2>&1
    code=$?
    set -e
    if [ $code = 0 ]; then
        echo "$wanted $afterwards" > "$folder/installed"
        echo "$name: installed"
    else
        grep -i error "$folder/install.log" | grep -v 'not a problem with pip' | tail -n 3 > "$folder/failed" ||
            tail -n 3 "$folder/install.log" > "$folder/failed"
        echo "$name: could not be installed: $(tail -n 1 "$folder/failed") (all of it in $folder/install.log)" >&2
        failed=1
    fi
done
exit $failed
