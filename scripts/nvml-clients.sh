#!/bin/sh
# Fetches independent clients of NVML, nvidia-ml-py and nvitop, from PyPI into target/nvml-clients for the tests
# of tests/nvml. Nothing else calls it: `make test` installs from Debian and crates.io alone. Where there is no Python
# with venv, or no package index, it says so and the tests skip them.
set -eu

cd "$(dirname "$0")/.."
dir=${CARGO_TARGET_DIR:-target}/nvml-clients

if "$dir/bin/python" -c 'import pynvml, nvitop' 2>/dev/null; then
    exit 0
fi
mkdir -p "${dir%/*}"
if python3 -m venv "$dir" >/dev/null 2>&1 &&
    timeout 60 "$dir/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
        'nvidia-ml-py>=13,<14' 'nvitop>=1.7,<2'; then
    exit 0
fi
rm -rf "$dir"
echo "nvidia-ml-py and nvitop could not be installed into $dir: their tests will be skipped" >&2
