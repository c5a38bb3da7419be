"""Islands: populations that train in processes of their own and exchange genotypes without waiting for each other."""

from rookery.islands.failures import IslandError, Outcome
from rookery.islands.replay import Replay, replay_island
from rookery.islands.run import run_islands

__all__ = ["IslandError", "Outcome", "Replay", "replay_island", "run_islands"]
