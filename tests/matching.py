"""CHECK lines, matched in process by the `filecheck` package: the only file that knows how it is driven (1.0.6)."""

from __future__ import annotations

import contextlib
import io

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts


def has_checks(text: str) -> bool:
    """Whether there is a CHECK line in the text."""
    return pattern_for_opts(Options("checks"))[0].search(text) is not None


def mismatch(checks: str, output: str, name: str) -> str | None:
    """What the CHECK lines in `checks` (a file called `name`) complain about in `output`; None if they match."""
    options = Options(match_filename=name, comment_prefixes=["COM", "RUN"])
    matcher = Matcher(
        options, FInput("output", output), Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    )
    messages = matcher.stderr = io.StringIO()
    with contextlib.redirect_stdout(messages):
        status = matcher.run()
    return None if status == 0 else messages.getvalue()
