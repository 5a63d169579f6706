"""What `benchmarks.instructions` runs under callgrind: `python -m benchmarks.counted FILE`.

FILE names a compiled artifact (`.rlx`) and its inputs (`.npz`). The run that is counted calls the generated code
directly, with next to nothing of Python in it. (One model per process: callgrind's second count would be wrong.)
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from relume.runtime import Context, load_executable
from relume.runtime.artifact import Image
from relume.runtime.image import MappedImage

CALLGRIND = (ord("C") << 24) | (ord("T") << 16)
DUMP, START, STOP = CALLGRIND, CALLGRIND + 4, CALLGRIND + 5
"""Valgrind's client requests (valgrind.h, callgrind.h)."""

REQUEST = bytes.fromhex(
    "4889f8"  # mov rax, rdi: the request, an array of six words
    "31d2"  # xor edx, edx: the answer where there is no valgrind
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi, 3 and 13 and 61 and 51: valgrind's mark, which changes nothing
    "4887db"  # xchg rbx, rbx
    "4889d0 c3"  # mov rax, rdx; ret
)


def main(file: str) -> None:
    """Runs it once, uncounted, and then again, counted."""
    exe, context = load_executable(f"{file}.rlx", threads=1), Context()
    with np.load(f"{file}.npz") as stored:
        inputs = dict(zip((port.name for port in exe.inputs), (stored[name] for name in stored.files), strict=True))
    outputs = exe.run(inputs, context=context)  # The context now holds all that a run needs.
    image = MappedImage(exe.artifact.image)
    run = image.entry("relume_run")

    stub = MappedImage(Image(REQUEST, {"request": 0}, ()))
    request = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(stub.address("request"))
    start, dump, stop = ((ctypes.c_uint64 * 6)(code) for code in (START, DUMP, STOP))
    request(ctypes.addressof(start))
    status = run(context.address)
    request(ctypes.addressof(dump))
    request(ctypes.addressof(stop))  # After the dump: it forgets what was counted.
    assert status == 0 and outputs, file


if __name__ == "__main__":
    main(sys.argv[1])
