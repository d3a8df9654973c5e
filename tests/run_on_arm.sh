#!/usr/bin/env bash
# Runs tests with a 64-bit ARM Python under qemu, as on a Raspberry Pi 5, which has dot products, and on a Raspberry Pi 4.
#
#     tests/run_on_arm.sh PYTHON [pytest's arguments; tests/kernels where there are none]
#
# PYTHON needs nothing but pip, by which it fetches wheels for ARM. The ARM Python and, where this machine has none, qemu
# are Debian's packages, unpacked and not installed, so that no rights are needed. All of it stays in .arm64/ for the
# next time. What is measured here, of time, says nothing about ARM.
set -euo pipefail

host_python=$1
shift
tests=("$@")
[ "${#tests[@]}" -gt 0 ] || tests=(tests/kernels)
cd "$(dirname "$0")/.."
place=$PWD/.arm64

for tool in apt-get dpkg-deb; do
    if ! command -v "$tool" >/dev/null; then
        echo "the ARM tests need a machine with Debian's packages: there is no $tool here" >&2
        exit 2
    fi
done

# ARCHITECTURE FOLDER PACKAGE...: unpack Debian's packages, with all that they depend on, into .arm64/FOLDER.
unpack() {
    local state=$place/apt-$1 folder=$place/$2
    [ -d "$folder" ] && return
    echo "fetching ${*:3} for $1 ..."
    mkdir -p "$state"/{lists,archives}/partial
    : >"$state/status" # of a machine on which nothing is installed
    cat >"$state/apt.conf" <<END
APT::Architecture "$1";
APT::Architectures { "$1"; };
APT::Sandbox::User "";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state";
END
    export APT_CONFIG=$state/apt.conf
    apt-get -qq update
    apt-get -qq --yes --no-install-recommends --download-only install "${@:3}" >"$state/log"
    unset APT_CONFIG
    rm -rf "$folder.part"
    mkdir "$folder.part"
    for package in "$state"/archives/*.deb; do
        dpkg-deb --extract "$package" "$folder.part"
    done
    rm "$state"/archives/*.deb
    mv "$folder.part" "$folder"
}

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -z "$qemu" ]; then
    unpack "$(dpkg --print-architecture)" qemu qemu-user-static
    qemu=$(find "$place/qemu/usr/bin" -name qemu-aarch64 -o -name qemu-aarch64-static | tail -n 1)
fi
unpack arm64 root python3 libstdc++6

# Python takes this for its own name, so that tests that start another Python start it under qemu too
python=$place/root/usr/bin/emulated-python
cat >"$python" <<END
#!/bin/sh
exec "$qemu" -L "$place/root" -0 "$python" "$place/root/usr/bin/python3" "\$@"
END
chmod +x "$python"

if [ ! -d "$place/wheels" ]; then
    echo "fetching wheels for arm64 ..."
    rm -rf "$place/wheels.part"
    # what pyproject.toml names for `dev`, less ruff
    "$host_python" -m pip install --quiet --disable-pip-version-check --target "$place/wheels.part" \
        --only-binary :all: --python-version "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" \
        --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 \
        numpy numba tokenizers huggingface_hub tqdm filelock jinja2 gguf pytest hypothesis safetensors
    mv "$place/wheels.part" "$place/wheels"
fi
echo "$place/wheels" >"$place/root/usr/lib/python3/dist-packages/wheels.pth"

# CPU PART FEATURES BACKEND: run the tests as on that processor, after a look at whether it is what it should be.
run_as() {
    export QEMU_CPU=$1 # instructions that this one lacks end the process
    # what LLVM knows a processor by; an older qemu shows programs the file of its own machine
    mkdir -p "$place/root/proc"
    printf '%s\n' "processor	: 0" "Features	: $3" "CPU implementer	: 0x41" "CPU architecture: 8" \
        "CPU variant	: 0x0" "CPU part	: $2" "CPU revision	: 3" >"$place/root/proc/cpuinfo"
    "$python" -c '
import platform, sys
from tinyinfer.kernels.processor import backend, features
print(f"{platform.machine()}, {sys.argv[1]}: backend {backend()}, features {sorted(features())}")
sys.exit(backend() != sys.argv[2] and f"expected the backend {sys.argv[2]}")
' "$1" "$4"
    "$python" -m pytest -p no:cacheprovider "${tests[@]}"
}

export PYTHONPATH=$PWD NUMBA_CACHE_DIR=$place/kernels
base="fp asimd evtstrm crc32 cpuid"
run_as cortex-a76 0xd0b "$base atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp" neon-dot
run_as cortex-a72 0xd08 "$base" neon
