"""Runs compiled artifacts. Needs `relume.base` and NumPy alone: no compiler, no LLVM."""

from relume.runtime.artifact_io import load_executable as load_executable
from relume.runtime.artifact_io import save_executable as save_executable
from relume.runtime.context import Context as Context
from relume.runtime.executable import Executable as Executable
from relume.runtime.storage import Storage as Storage
