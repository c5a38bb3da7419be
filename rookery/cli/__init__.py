"""The command line."""

from rookery.cli.app import main

__all__ = ["main"]
