#!/usr/bin/env bash
# Installs PufferLib, with which train.py and sb3.py compare, into an environment of its own: .cache/peers/pufferlib.
# A file `failed` in it says why it could not be installed. A second call does only what is missing.
source "$(dirname "$0")/../setup.sh"
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

folder=.cache/peers/pufferlib
# torch as the project has it: the same build for everybody
torch=$("$python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch").split("+")[0])')
wanted="$torch pufferlib==3.0.0 numba numpy msgspec loguru pyyaml pillow psutil setuptools" # what diy imports, too
wanted="$wanted ale-py==0.12.0 opencv-python-headless==4.11.0.86" # and Pong
if [ "$(cat "$folder/installed" 2> /dev/null || true)" = "$wanted" ]; then
    echo "PufferLib is installed"
    exit
fi

install() (
    set -e
    "$python" -m venv "$folder"
    pip=("$folder/bin/python" -m pip install)
    # its setup.py would download raylib for its games; without them (NO_OCEAN) it fails by a name that it has not defined
    # then, and where it finds nvcc it wants CUDA's headers
    export NO_OCEAN=1 PATH="$PWD/$folder/bin:/usr/bin:/bin"
    "${pip[@]}" "$torch" "setuptools<81" wheel cython "numpy<2"
    packages=$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    echo "import builtins; builtins.c_extension_paths = []" > "$packages/no_ocean.pth"
    # shellcheck disable=SC2086  # words
    "${pip[@]}" --no-build-isolation $wanted
    "${pip[@]}" --no-deps gymnasium==1.4.0 # although it asks for an older one
)

echo "installing $wanted (minutes) ..."
rm -rf "$folder"
mkdir -p .cache/peers
set +e
install > .cache/peers/install.log 2>&1
code=$?
set -e
if [ $code = 0 ]; then
    echo "$wanted" > "$folder/installed"
else
    tail -n 3 .cache/peers/install.log > "$folder/failed"
    echo "it could not be installed: $(tail -n 1 "$folder/failed") (all of it in .cache/peers/install.log)" >&2
fi
exit $code
