"""From the graph to the program: the only room that knows both."""

from relume.lower.table import OPS, lower

__all__ = ["OPS", "lower"]
