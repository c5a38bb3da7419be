"""The settings of trackers on the command line, and the callbacks that they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.settings import user_path
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


def continued(config: TrackingConfig, run_dir: str | Path) -> TrackingConfig:
    """The trackers of a run that is resumed: those that it has used before, unless `config` names another."""
    folder = user_path(run_dir)
    project = config.wandb or records.read_record(folder, "wandb").get("project")
    return TrackingConfig(project, config.mlflow or records.read_record(folder, "mlflow").get("uri"))


def trackers(config: TrackingConfig, quiet: bool = False) -> Sequence[Callback]:
    """The callbacks of the configured trackers, which are imported, and connected, only here.

    Args:
      config: which trackers.
      quiet: do not print where the trackers' runs are.

    Raises:
      ImportError: the package of a tracker is not installed.
      TrackerError: a tracker cannot be used or reached.
    """
    found: list[Callback] = [WandbTracker(config.wandb, quiet)] if config.wandb else []
    return [*found, MlflowTracker(config.mlflow, quiet=quiet)] if config.mlflow else found
