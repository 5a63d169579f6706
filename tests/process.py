"""What Linux says about this process: its peak memory, and what is resident and dirty of one mapping. All in bytes."""

from __future__ import annotations

from pathlib import Path

PAGE = 4096


def status(field: str) -> int:
    """A field of /proc/self/status, such as `VmHWM` (the peak) or `VmRSS` (now)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def forget_peak() -> None:
    """Makes `VmHWM` start again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def mapping(path: Path) -> dict[str, int]:
    """The fields of /proc/self/smaps, summed over this process's mappings of a file, and `Dirty`: private and shared.

    Raises `LookupError` where the file is not mapped.
    """
    total: dict[str, int] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            inside = line.endswith(f" {path}")
        elif inside and rest[-1] == "kB":
            total[first[:-1]] = total.get(first[:-1], 0) + int(rest[0]) * 1024
    if not total:
        raise LookupError(f"{path} is not mapped")
    return {**total, "Dirty": total["Private_Dirty"] + total["Shared_Dirty"]}
