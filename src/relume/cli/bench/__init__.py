"""`relume bench`: a model on this machine, beside its peers."""

from relume.cli.bench.command import bench

__all__ = ["bench"]
