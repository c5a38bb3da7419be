"""Trackers: callbacks that send a run to Weights & Biases or MLflow."""

from rookery.tracking.mlflow_tracker import MlflowTracker
from rookery.tracking.records import TrackerError
from rookery.tracking.settings import TrackingConfig, continued, trackers
from rookery.tracking.wandb_tracker import WandbTracker

__all__ = ["MlflowTracker", "TrackerError", "TrackingConfig", "WandbTracker", "continued", "trackers"]
