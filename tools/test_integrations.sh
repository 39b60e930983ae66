#!/usr/bin/env bash
# The tests of an integration, in an environment of its own with the trainer it is for.
#
#   bash tools/test_integrations.sh paddleformers|paddlenlp [arguments for pytest]
#
# The environment is .venv-TRAINER, the one of tools/train.sh, or $FLASHMASK_VENV_NAME in the
# checkout. It needs what that needs.
set -euo pipefail

readonly EXIT_WRONG_INPUT=2
trainer="${1:-}"
if [[ "$trainer" != paddleformers && "$trainer" != paddlenlp ]]; then
    echo "usage: bash tools/test_integrations.sh paddleformers|paddlenlp [arguments]; got: $*" >&2
    exit "$EXIT_WRONG_INPUT"
fi
shift

# shellcheck disable=SC2034  # of venv.sh
script=train venv_name="${FLASHMASK_VENV_NAME:-.venv-$trainer}"
# shellcheck source=tools/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

main() {
    local python
    python="$(find_python)"
    check_compiler "$trainer"
    make_venv "$python"
    install_requirements "$root/tools/train/requirements.txt"
    build "$trainer"
    export PYTHONPYCACHEPREFIX="$venv/cache/bytecode" HYPOTHESIS_STORAGE_DIRECTORY="$venv/cache/hypothesis"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r "$root/tools/train/requirements-test.txt"
    cd "$root"
    # -W ignore: the trainers warn of much that is not ours.
    OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" exec "$venv/bin/python" -m pytest -W ignore \
        -o cache_dir="$venv/cache/pytest" -m "$trainer" "tests/integrations/$trainer" "$@"
}

main "$@"
