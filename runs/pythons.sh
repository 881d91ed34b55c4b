#!/usr/bin/env bash
# Runs the whole test suite with every Python that pyproject.toml lists and this machine has.
#
#     bash runs/pythons.sh [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m pytest "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
INSTALL_S=${INSTALL_S:-3600} bash .ci/pythons install "$work"
bash .ci/pythons test "$work" "$@"
