"""What is printed, on streams whose failures do not end a run."""

import contextlib
import io
import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import IO, Any

from rich.console import Console

from rookery.storage.run_dir import OutputWarning

_NAMES = {"<stdout>": "standard output", "<stderr>": "standard error"}
_failed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Stream that could not be written -> the warning about it."""


class Output:
    r"""A text stream for printing, in place of `sys.stdout` or `sys.stderr`, that raises no error.

    A character that the encoding of the stream lacks is written as its escape, such as `\u2192`. A stream that cannot
    be written (its disk is full, its terminal is gone) is warned of once, and later lines are tried again. The reader
    of a pipe may go away, as `head` does, without a warning.

    Args:
      stream: the stream, or None for one that was closed before the process began.
    """

    def __init__(self, stream: IO[str] | None):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def failed(self) -> bool:
        """Whether something could not be written."""
        return self._stream in [*_failed]

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        with self._attempt() as stream:
            try:
                stream.write(text)
            except UnicodeEncodeError as error:
                stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._attempt() as stream:
            stream.flush()

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[IO[str]]:
        try:
            yield self._stream or io.StringIO()
        except BrokenPipeError:
            self.discard()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            if not self.failed:
                name, reason = getattr(self._stream, "name", "output"), getattr(error, "strerror", None) or error
                message = f"{_NAMES.get(name, name)} cannot be written ({reason}); the run continues"
                _failed[self._stream] = message
                warnings.warn(message, OutputWarning, stacklevel=4)

    def discard(self) -> None:
        """Discard what is written from now on, and what is flushed when the process ends."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def failures() -> list[str]:
    """The warnings about streams that could not be written."""
    return [*_failed.values()]


@contextlib.contextmanager
def unfailing_streams() -> Iterator[None]:
    """Let nothing that is printed within the block raise an error, by any code."""
    before = sys.stdout, sys.stderr
    outputs: Any = Output(sys.stdout), Output(sys.stderr)
    sys.stdout, sys.stderr = outputs
    try:
        yield
    finally:
        for output in outputs:
            output.flush()
        for output in outputs:
            if output.failed:
                output.discard()
        sys.stdout, sys.stderr = before


class Terminal(Console):
    """A console that prints text as it is; see `terminal`."""

    def print_line(self, text: str) -> None:
        """Print one line, which is not wrapped, so that a path or a command in it can be copied."""
        self.print(text, soft_wrap=True)

    def _unfailing_file(self) -> Any:
        found = Console.file.__get__(self)
        return Output(found) if isinstance(found, io.TextIOWrapper) else found

    file: Any = property(_unfailing_file, Console.file.__set__)


def terminal(**options: Any) -> Terminal:
    """Create a terminal that prints text as it is: brackets in a path are no markup.

    Args:
      **options: of `rich.console.Console`, such as `quiet` and `file`.
    """
    return Terminal(markup=False, emoji=False, highlight=False, **options)
