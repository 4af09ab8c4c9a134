#!/usr/bin/env bash
# What a GPU is worth, in one command of at most eight minutes, without a network:
#     tools/bench/gpu.sh --collect [FOLDER]    # before, where a network is: wheels for Python 3.12 on Linux, 40 MB
#     tools/bench/gpu.sh [FOLDER [OUT]]        # there; PYTHON names it, DEVICE=cpu tries all this without a GPU
# FOLDER is .cache/gpu, OUT train/gpu. Taken from FOLDER is what this Python lacks; torch, NumPy and numba it must have. Prints
# whether the algorithms compute there what they compute on the CPU, then tables, and writes them as JSON: parts (forward
# passes, updates, copies), speed (env steps/s, and how many questions an actor answers a second), published (the network
# of conf/reference.toml), score (seconds to a score of 1150). A step that fails or takes too long costs its table alone;
# STEPS="devices parts" makes these alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
needs="absl-py|cloudpickle|farama-notifications|grpcio|gymnasium|iniconfig|isal|loguru|markdown|markdown-it-py|mdurl|msgspec|\
packaging|pillow|pluggy|protobuf|psutil|pygments|pytest|pyyaml|pyzmq|rich|safetensors|setproctitle|tensorboard|werkzeug"

if [ "${1:-}" = --collect ]; then
    folder=${2:-.cache/gpu} tags=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
    for glibc in 28 27 24 17 12 5; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
    mapfile -t pins < <(sed -nE "/python_full_version < /d; s/^(($needs)==[^ ]*).*/\1/p" requirements.lock requirements.dev.lock |
        sort -u)
    mkdir -p "$folder"
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 "${tags[@]}" -d "$folder" "${pins[@]}"
    du -shc "$folder"/*.whl | tail -n 1
    exit
fi

folder=$(realpath -m "${1:-.cache/gpu}") out=${2:-train/gpu}
mkdir -p "$out"
shopt -s nullglob # without wheels there is nothing to install
mapfile -t missing < <("$python" - "$folder"/*.whl << 'END'
import sys
from importlib import metadata

for path in sys.argv[1:]:
    try:
        metadata.version(path.rpartition("/")[2].partition("-")[0])
    except metadata.PackageNotFoundError:
        print(path)
END
)
if [ "${#missing[@]}" -gt 0 ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$folder/site" "${missing[@]}"
fi
export PYTHONPATH="$folder/site:$PWD" NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR:-$PWD/.cache/numba}" PYTHONUNBUFFERED=1
device=(--set "device=${DEVICE:-auto}")
graph=$([ "${DEVICE:-}" = cpu ] || echo graph)

step() { # seconds at most, title, command
    if [[ " ${STEPS:-$2} " != *" $2 "* ]]; then return; fi
    echo "== $2"
    timeout -k 20 "$1" "${@:3}" || echo "== $2: ended with exit code $?"
}

step 30 machine "$python" -c "
import numpy, torch; from realm.config.plan import this_machine
name = torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'
print(f'torch {torch.__version__}, NumPy {numpy.__version__}, {name}, {this_machine()}')"
step 60 devices "$python" -m pytest -q -p no:cacheprovider tests/algorithms/test_devices.py
parts=(--only copies forward learner --rounds 2 --seconds 0.2 --out "$out/parts.json")
step 60 parts "$python" tools/bench/parts.py "${parts[@]}" "${device[@]}"
train=("$python" tools/bench/train.py --rounds 1 "${device[@]}")
asks="predict_local_or_remote=remote aisrv_connect_to_kaiwu_env_count=8"
# shellcheck disable=SC2086 # no word if there is no GPU
step 120 speed "${train[@]}" --seconds 8 --out "$out/speed.json" --rows plain $graph local tuner \
    --row workers4="$asks aisrv_count=4"
step 20 speed "$python" -c "
import json; one = json.load(open('$out/speed.json'))['rows']['workers4']['rounds'][0]
print(f'workers4: {one[\"env_steps_per_s\"] / 8:,.0f} questions/s of 8 rows')"
# shellcheck disable=SC2086 # as above
step 120 published "${train[@]}" --config conf/reference.toml --seconds 12 --out "$out/published.json" --rows plain $graph local tuner
step 75 score "${train[@]}" --seconds 8 --out "$out/score.json" --rows tuner --to-score --score-minutes 1
echo "all of it took $SECONDS s; JSON is in $out"
