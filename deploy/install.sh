#!/bin/sh
# Installs isonomy for a federation into a new virtual environment; the Dockerfile runs this.
#   sh deploy/install.sh FOLDER
# PYTHON chooses the interpreter, PIP_OPTIONS are passed to pip.
set -eu
target=${1:?usage: sh deploy/install.sh FOLDER}
source=$(cd "$(dirname "$0")/.." && pwd)
"${PYTHON:-python3}" -m venv "$target"
# shellcheck disable=SC2086  # several options
"$target/bin/python" -m pip install --no-cache-dir --disable-pip-version-check --quiet ${PIP_OPTIONS:-} \
  -c "$source/constraints.txt" "$source[flower,tune]"
"$target/bin/isonomy" doctor
