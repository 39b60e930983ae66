#!/usr/bin/env bash
# Fine-tunes a small random model with one of Paddle's trainers on the CPU, once with
# flashmask_attention and once with the trainer's own eager attention, and prints both losses.
#
#   bash tools/train.sh paddleformers|paddlenlp STAGE [arguments of the stage]
#
# Makes .venv-TRAINER with the pins of the extra of that name in pyproject.toml, builds the operator,
# then runs tools/train/on_TRAINER.py (`--help` after the stage lists its arguments). Needs Python
# 3.10 to 3.12 (or PYTHON=/its/path), a C++ compiler (or CXX=name) and, the first time, 2 GB of disk
# and the network. Exit codes: 0 all losses equal, 1 they differ, 2 a wrong argument or file, 3
# something to install first.
set -euo pipefail

readonly EXIT_WRONG_INPUT=2
trainer="${1:-}"
if [[ "$trainer" != paddleformers && "$trainer" != paddlenlp ]] || (($# < 2)); then
    echo "usage: bash tools/train.sh paddleformers|paddlenlp STAGE [arguments]; got: $*" >&2
    exit "$EXIT_WRONG_INPUT"
fi
shift

# shellcheck disable=SC2034  # of venv.sh
script=train venv_name=".venv-$trainer"
# shellcheck source=tools/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

main() {
    local python driver="$root/tools/train/on_$trainer.py"
    python="$(find_python)"
    "$python" "$driver" --check-only "$@"
    check_compiler "$trainer"
    make_venv "$python"
    install_requirements "$root/tools/train/requirements.txt"
    build "$trainer"
    exec "$venv/bin/python" "$driver" "$@"
}

main "$@"
