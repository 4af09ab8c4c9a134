# Sourced by tools/bench/peers.sh before it installs PufferLib, whose setup.py would download raylib for its games. Without
# the games (NO_OCEAN) it fails by a name that it has not defined then, and where it finds nvcc it wants CUDA's headers.
export NO_OCEAN=1 PATH="$PWD/$folder/bin:/usr/bin:/bin"
"$folder/bin/python" -m pip install --no-input "$torch" "setuptools<81" wheel cython "numpy<2"
packages=$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')
echo "import builtins; builtins.c_extension_paths = []" > "$packages/no_ocean.pth"
options="--no-build-isolation"
