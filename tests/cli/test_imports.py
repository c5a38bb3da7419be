"""What starting a command imports: every command, and every process of a run, waits for it."""

import signal
import subprocess
import sys

FEW_RUNS_NEED = {"equinox", "matplotlib", "orbax", "scipy.spatial", "scipy.stats", "tinygp"}
FEW_RUNS_NEED |= {"wandb", "mlflow", "sqlalchemy"}


def test_starting_a_command_imports_nothing_that_only_some_runs_need():
    code = f"import sys; import rookery.cli.app; print(*sorted({FEW_RUNS_NEED} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not found.stdout.split()


_COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores Ctrl-C
sys.argv = ["/bin/rookery", "--version"]
class Finder:
    def find_spec(name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from rookery.cli import main
main()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_ctrl_c_while_a_command_is_imported_prints_no_trace():
    for module, code in (("jax", -signal.SIGINT), ("rookery.cli.app", -signal.SIGINT), ("", 0)):
        command = [sys.executable, "-c", _COMMAND.format(module=module)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stderr) == (code, ""), module
