"""What is printed in a terminal."""

import os
import sys
from typing import Any

from rich.console import Console


class Terminal(Console):
    """A console whose reader may go away, as `head` does, without an end of the run; see `terminal`."""

    def print_line(self, text: str) -> None:
        """Print one line, which is not wrapped, so that a path or a command in it can be copied."""
        self.print(text, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Print nothing any more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed when the process ends


def terminal(**options: Any) -> Terminal:
    """Create a terminal that prints text as it is: brackets in a path are no markup.

    Args:
      **options: of `rich.console.Console`, such as `quiet` and `file`.
    """
    return Terminal(markup=False, emoji=False, highlight=False, **options)
