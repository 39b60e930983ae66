#!/usr/bin/env bash
# Installs the project into .venv, builds it, and trains a small model on packed data by SFT, DPO and
# reward modelling, each with flashmask_attention and with a dense mask; see
# tools/quickstart/train.py for what is compared.
#
#   bash tools/quickstart.sh [--stages sft,dpo,rm] [--steps N] [--seq-len N] [--batch-size N]
#                            [--seed N] [--output DIR] [FILE ...]
#
# Needs Python 3.10 to 3.12 (or PYTHON=/its/path) and a C++ compiler (or CXX=name). Network is used
# only for what .venv lacks. Exit codes: 0 all losses equal, 1 they differ, 2 a wrong argument or
# file, 3 something to install first.
set -euo pipefail

# shellcheck disable=SC2034  # of venv.sh
script=quickstart venv_name=.venv
# shellcheck source=tools/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

main() {
    local python
    python="$(find_python)"
    for argument in "$@"; do
        if [[ "$argument" == -h || "$argument" == --help ]]; then
            exec "$python" "$root/tools/quickstart/train.py" --help
        fi
    done
    "$python" "$root/tools/quickstart/train.py" --check-only "$@"
    check_compiler
    make_venv "$python"
    install_requirements "$root/tools/quickstart/requirements.txt"
    build
    exec "$venv/bin/python" "$root/tools/quickstart/train.py" "$@"
}

main "$@"
