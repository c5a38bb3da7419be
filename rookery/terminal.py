"""What is printed in a terminal."""

import os
import sys
from typing import Any

from rich.console import Console


class Terminal(Console):
    """Prints text as it is: brackets in a path are no markup. A reader that goes away, as `head` does, ends no run."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def print_line(self, text: str) -> None:
        """Print one line, which is not wrapped, so that a path or a command in it can be copied."""
        self.print(text, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Print nothing any more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed when the process ends
