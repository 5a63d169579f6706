"""Mapping machine code: nothing runs that is not sealed, and nothing is left unresolved."""

from __future__ import annotations

from pathlib import Path

import machine_code
import pytest

from relume.base.errors import CompileError
from relume.runtime.artifact import Image
from relume.runtime.image import MappedImage


def protection(address: int) -> str:
    """The flags of the mapping that holds an address, from /proc/self/maps; empty if none does."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags = line.split()[:2]
        low, high = (int(edge, 16) for edge in span.split("-"))
        if low <= address < high:
            return flags
    return ""


def test_code_is_executable_and_not_writable() -> None:
    mapped = MappedImage(machine_code.affine().image)
    assert protection(mapped.address("relume_run")) == "r-xp"


def test_no_page_of_the_process_is_writable_and_executable_for_our_sake() -> None:
    before = Path("/proc/self/maps").read_text().count("rwx")
    mapped = [MappedImage(machine_code.affine().image) for _ in range(3)]
    assert Path("/proc/self/maps").read_text().count("rwx") == before
    assert mapped


def test_the_mapping_goes_with_its_owner() -> None:
    mapped = MappedImage(machine_code.affine().image)
    address = mapped.address("relume_entry")
    assert "x" in protection(address)
    del mapped
    assert "x" not in protection(address)


@pytest.mark.parametrize(
    "image, words",
    [
        (Image(b"\xc3" * 16, {}, ((0, "system"),)), "must not"),
        (Image(b"\xc3" * 16, {}, ((0, "no_such_function"),)), "must not"),
        (Image(b"\xc3" * 16, {}, ((9, "memcpy"),)), "slot lies outside"),
        (Image(b"\xc3" * 16, {}, ((-8, "memcpy"),)), "slot lies outside"),
        (Image(b"\xc3" * 16, {"relume_entry": 16}, ()), "lies outside the code"),
        (Image(b"", {"relume_entry": 0}, ()), "lies outside the code"),
    ],
)
def test_an_inconsistent_image_is_refused(image: Image, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        MappedImage(image)


def test_a_missing_function_is_named() -> None:
    with pytest.raises(CompileError, match="relume_entry"):
        MappedImage(Image(b"\xc3" * 16, {"other": 0}, ())).entry()
