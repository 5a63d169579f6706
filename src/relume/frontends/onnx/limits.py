"""What the front end refuses to do, however politely a file asks. `docs/limits.md` repeats these numbers."""

from __future__ import annotations

MAX_DEPTH = 60
"""Graphs inside graphs plus calls inside calls, once local functions are expanded. Each level costs a few Python
frames. A file cannot nest graphs deeper than 32: protobuf itself stops at 100 nested messages, three per graph."""

MAX_NODES = 1_000_000
"""Nodes after local functions are expanded, counted before anything is expanded."""

MAX_TENSOR_BYTES = 1 << 38
"""Bytes (256 GiB) of one tensor of known shape: more than any machine this runs on can hold."""

MAX_GENERATED = 1 << 25
"""Elements of all constants that one import makes up from a few numbers (ranges, tables of indices): a small file
must not make a large module."""

MAX_KNOWN = 1024
"""Elements up to which the contents of a value are followed at import (shapes are short)."""
