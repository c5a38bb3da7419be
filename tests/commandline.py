"""The command line, called in this process, which saves the start of a separate one."""

import contextlib
import io
import sys
import warnings
from typing import IO

import pytest

from rookery.cli import app
from rookery.storage.checkpoint import CheckpointWarning
from rookery.storage.sources import SourceWarning

POINT = (
    "--env point_room --episode-length 20 --population 4 --steps-per-generation 400 --num-envs 4 --batch-size 8 "
    "--hidden-sizes 8 --buffer-size 5000 --warmup-steps 8 --eval-episodes 2 --exploit-interval 800"
).split()
"""A small population in a plane; tests that train `pbt-sac` with these flags share its compiled programs."""


def call(*words: str, **streams: IO[str]) -> tuple[int, str, str]:
    """`rookery` with these words: its exit code, output and errors, unless `out` or `err` is another stream."""
    out, err = streams.get("out") or io.StringIO(), streams.get("err") or io.StringIO()
    code = 0
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),  # puts back how they are shown, too, which the command changes
    ):
        for shown in (CheckpointWarning, SourceWarning):
            warnings.simplefilter("default", shown)  # which the command shows to its user
        patched.setattr("sys.argv", ["rookery", *words])
        patched.setattr("sys.unraisablehook", sys.unraisablehook)  # to put it back, since the command changes it
        patched.setattr(app, "keep_compiled_programs", lambda: None)  # the tests have a separate cache
        try:
            app.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    printed, errors = (stream.getvalue() if isinstance(stream, io.StringIO) else "" for stream in (out, err))
    return code, printed, errors


def printed(*words: object) -> str:
    """The output of `rookery` with these words, which succeeds without any error or warning."""
    code, out, err = call(*map(str, words))
    assert (code, err) == (0, ""), words
    return out
