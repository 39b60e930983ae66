"""What happens where no trainer is installed."""

from __future__ import annotations

from support.processes import run_python

WITHOUT = "import sys\nsys.modules['paddleformers'] = None\n"


def test_using_it_without_paddleformers_says_what_to_install(tmp_path):
    program = WITHOUT + (
        "from paddle_flashmask.integrations import paddleformers\n"
        "try:\n"
        "    paddleformers.register()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "needs PaddleFormers, which does not import" in done.stdout
    assert "pip install --no-build-isolation '.[paddleformers]'" in done.stdout


def test_importing_the_integrations_imports_no_paddle(tmp_path):
    program = "import sys, paddle_flashmask.integrations\nprint('paddle' in sys.modules)\n"
    assert run_python(program, tmp_path).stdout == "False\n"
