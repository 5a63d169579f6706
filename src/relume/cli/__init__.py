"""The command line: `relume run | check | bench | dump | demo`.

Exit status 0: done; 1: the model or a comparison failed; 2: wrong usage.
"""

from __future__ import annotations

import typer

from relume.cli.bench import bench
from relume.cli.check import check
from relume.cli.demo import demo
from relume.cli.dump import dump
from relume.cli.run import run

app = typer.Typer(
    name="relume",
    help="Compiles neural networks to native code, and runs them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, check, bench, dump, demo):
    app.command()(command)


def main() -> None:
    """The `relume` program."""
    app()
