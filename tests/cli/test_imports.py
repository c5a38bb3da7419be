"""What starting a command imports: every command, and every process of a run, waits for it."""

import subprocess
import sys

FEW_RUNS_NEED = {"equinox", "matplotlib", "orbax", "scipy.spatial", "scipy.stats", "tinygp"}
FEW_RUNS_NEED |= {"wandb", "mlflow", "sqlalchemy"}


def test_starting_a_command_imports_nothing_that_only_some_runs_need():
    code = f"import sys; import rookery.cli.app; print(*sorted({FEW_RUNS_NEED} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not found.stdout.split()
