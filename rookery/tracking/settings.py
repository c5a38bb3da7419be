"""The settings of trackers on the command line, and the callbacks that they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.tracking import records
from rookery.tracking.mlflow_tracker import MlflowTracker
from rookery.tracking.wandb_tracker import WandbTracker
from rookery.training.callbacks import Callback


@dataclass(frozen=True)
class TrackingConfig:
    """Trackers to which each generation is sent (docs/guides/tracking.md). `rookery resume` continues them."""

    wandb: str | None = None
    """Project of Weights & Biases, as PROJECT or ENTITY/PROJECT; needs the extra `wandb`. With
    WANDB_MODE=offline in the environment no server is needed."""
    mlflow: str | None = None
    """MLflow server (http://HOST:PORT), database (sqlite:///FILE), or a folder for such a database; needs the extra
    `mlflow`."""


def trackers(config: TrackingConfig, run_dir: str | Path | None = None, quiet: bool = False) -> Sequence[Callback]:
    """The callbacks of the configured trackers, which are imported, and connected, only here.

    Args:
      config: which trackers.
      run_dir: of a run to be resumed: a tracker that it has used before is used again, unless `config` names another.
      quiet: do not print where the trackers' runs are.

    Raises:
      ImportError: the package of a tracker is not installed.
      TrackerError: a tracker cannot be used or reached.
    """
    before = Path(run_dir) if run_dir is not None else None
    project = config.wandb or records.read_record(before, "wandb").get("project")
    uri = config.mlflow or records.read_record(before, "mlflow").get("uri")
    found: list[Callback] = [WandbTracker(project, quiet)] if project else []
    return [*found, MlflowTracker(uri, quiet=quiet)] if uri else found
