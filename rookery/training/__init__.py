"""The training loop of a run: compilation, generations, progress display, memory plan, and the files that it writes."""

from rookery.training.callbacks import Callback, CallbackError, CallbackWarning, Generation, Required, Start
from rookery.training.loop import Result

__all__ = ["Callback", "CallbackError", "CallbackWarning", "Generation", "Required", "Result", "Start"]
