#!/usr/bin/env bash
# The whole suite under every Python that pyproject.toml names and this machine has.
#
#     bash runs/pythons.sh [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m pytest "$@"
INSTALL_S=${INSTALL_S:-3600} bash .ci/pythons "$@"
