"""Content digests: the identity of constants, kernels, sites and artifacts."""

from __future__ import annotations

import hashlib

import numpy as np

LENGTH = 16
"""Bytes of a digest (BLAKE2b-128). Digests find candidates; exact equality decides where sharing depends on it."""


def of_bytes(*parts: bytes) -> str:
    """Digest of a sequence of byte strings; the boundaries count. Hexadecimal."""
    state = hashlib.blake2b(digest_size=LENGTH)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def of_text(*parts: str) -> str:
    """Digest of a sequence of strings; the boundaries count. Hexadecimal."""
    return of_bytes(*(part.encode() for part in parts))


def of_array(array: np.ndarray) -> str:
    """Digest of an array's dtype, shape and bytes in C order. Hexadecimal."""
    head = f"{array.dtype.name}{list(array.shape)}".encode()
    state = hashlib.blake2b(head, digest_size=LENGTH)
    state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()
