"""Small artifacts for the tests of the runtime, from LLVM IR written by hand: no graph, no program, no kernels."""

from __future__ import annotations

from functools import cache
from string import Template

import numpy as np

from relume.base import abi, dims, dtypes
from relume.base.targets import AVX2
from relume.codegen import link, llvm, support
from relume.runtime.artifact import Allocation, Artifact, Image, Port

N = dims.symbol("N")
M = dims.symbol("M")

_FIELDS = """
  %inputs = load ptr, ptr %ctx, align 8
  %outputs.at = getelementptr i8, ptr %ctx, i64 $outputs
  %outputs = load ptr, ptr %outputs.at, align 8
  %states.at = getelementptr i8, ptr %ctx, i64 $states
  %states = load ptr, ptr %states.at, align 8
  %constants.at = getelementptr i8, ptr %ctx, i64 $constants
  %constants = load ptr, ptr %constants.at, align 8
  %dims.at = getelementptr i8, ptr %ctx, i64 $dims
  %dims = load ptr, ptr %dims.at, align 8
  %offsets.at = getelementptr i8, ptr %ctx, i64 $offsets
  %offsets = load ptr, ptr %offsets.at, align 8
  %arena.at = getelementptr i8, ptr %ctx, i64 $arena
  %arena = load ptr, ptr %arena.at, align 8
"""

_MARK = """
  %written.at = getelementptr i8, ptr %ctx, i64 $written
  store i64 1, ptr %written.at, align 8
"""

# t = x * c on the pool, in the arena; y = t + x
_AFFINE = """
declare i32 @relume_parallel(ptr, ptr, ptr, ptr, i64)

define internal i32 @scale(ptr %ctx, ptr %operands, ptr %extents, i64 %begin, i64 %end, i64 %thread) {
entry:
  %x = load ptr, ptr %operands, align 8
  %c.at = getelementptr ptr, ptr %operands, i64 1
  %c.p = load ptr, ptr %c.at, align 8
  %t.at = getelementptr ptr, ptr %operands, i64 2
  %t = load ptr, ptr %t.at, align 8
  %c = load float, ptr %c.p, align 4
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %x.i = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %x.i, align 4
  %scaled = fmul float %value, %c
  %t.i = getelementptr float, ptr %t, i64 %i
  store float %scaled, ptr %t.i, align 4
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 0
}

define i32 @relume_run(ptr %ctx) {
entry:
  $fields
  %operands = alloca [3 x ptr], align 8
  %x = load ptr, ptr %inputs, align 8
  %y = load ptr, ptr %outputs, align 8
  %c = load ptr, ptr %constants, align 8
  %n = load i64, ptr %dims, align 8
  %offset = load i64, ptr %offsets, align 8
  %t = getelementptr i8, ptr %arena, i64 %offset
  store ptr %x, ptr %operands, align 8
  %second = getelementptr ptr, ptr %operands, i64 1
  store ptr %c, ptr %second, align 8
  %third = getelementptr ptr, ptr %operands, i64 2
  store ptr %t, ptr %third, align 8
  %status = call i32 @relume_parallel(ptr %ctx, ptr @scale, ptr %operands, ptr null, i64 %n)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %t.i = getelementptr float, ptr %t, i64 %i
  %x.i = getelementptr float, ptr %x, i64 %i
  %y.i = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %t.i, align 4
  %b = load float, ptr %x.i, align 4
  %sum = fadd float %a, %b
  store float %sum, ptr %y.i, align 4
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 %status
}
"""

# y = x, one element; for as long as x is not 0, it polls
_SPIN = """
declare i32 @relume_poll(ptr, i64)

define i32 @relume_run(ptr %ctx) {
entry:
  $fields
  %x.p = load ptr, ptr %inputs, align 8
  %y.p = load ptr, ptr %outputs, align 8
  %x = load float, ptr %x.p, align 4
  store float %x, ptr %y.p, align 4
  $mark
  %short = fcmp oeq float %x, 0.0
  br i1 %short, label %done, label %head
head:
  %status = call i32 @relume_poll(ptr %ctx, i64 0)
  %stop = icmp ne i32 %status, 0
  br i1 %stop, label %out, label %head
out:
  ret i32 %status
done:
  ret i32 0
}
"""

# w = w + x; y = w
_COUNT = """
define i32 @relume_run(ptr %ctx) {
  $fields
  %x.p = load ptr, ptr %inputs, align 8
  %y.p = load ptr, ptr %outputs, align 8
  %w.p = load ptr, ptr %states, align 8
  %x = load float, ptr %x.p, align 4
  %w = load float, ptr %w.p, align 4
  %sum = fadd float %w, %x
  $mark
  store float %sum, ptr %w.p, align 4
  store float %sum, ptr %y.p, align 4
  ret i32 0
}
"""

# Fails in instruction 7 with the status and the two details in x
_FAIL = """
define i32 @relume_run(ptr %ctx) {
  $fields
  %x = load ptr, ptr %inputs, align 8
  %status = load i64, ptr %x, align 8
  %first.at = getelementptr i64, ptr %x, i64 1
  %first = load i64, ptr %first.at, align 8
  %second.at = getelementptr i64, ptr %x, i64 2
  %second = load i64, ptr %second.at, align 8
  %failed.at = getelementptr i8, ptr %ctx, i64 $failed
  %detail0.at = getelementptr i8, ptr %ctx, i64 $detail0
  %detail1.at = getelementptr i8, ptr %ctx, i64 $detail1
  store i64 7, ptr %failed.at, align 8
  store i64 %first, ptr %detail0.at, align 8
  store i64 %second, ptr %detail1.at, align 8
  %short = trunc i64 %status to i32
  ret i32 %short
}
"""

# Two outputs: the bytes of the input, by a call out of the image, and its number of elements
_COPY = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @relume_run(ptr %ctx) {
  $fields
  %x = load ptr, ptr %inputs, align 8
  %y = load ptr, ptr %outputs, align 8
  %count.at = getelementptr ptr, ptr %outputs, i64 1
  %count = load ptr, ptr %count.at, align 8
  %n = load i64, ptr %dims, align 8
  %bytes = mul i64 %n, 2
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %x, i64 %bytes, i1 false)
  store i64 %n, ptr %count, align 8
  ret i32 0
}
"""

_EMPTY = "define i32 @relume_run(ptr %ctx) { ret i32 0 }"


@cache
def image(text: str, writes: bool = False) -> Image:
    """Compiles the IR of `relume_run`, and links it with the support code that every image carries.

    `writes`: it says so where the text has `$mark`.
    """
    fields = Template(_FIELDS).substitute(abi.FIELD)
    mark = Template(_MARK).substitute(abi.FIELD) if writes else ""
    run = Template(text).substitute(abi.FIELD, fields=fields, mark=mark)
    objects = [("support", llvm.compile_ir(support.emit(AVX2), AVX2)), ("run", llvm.compile_ir(run, AVX2, opt=1))]
    return link.link(objects)


def artifact(code: Image, **fields: object) -> Artifact:
    """An artifact of one f32[1] input and output, with some fields changed."""
    plain: dict[str, object] = {
        "name": "main",
        "target": AVX2.name,
        "image": code,
        "inputs": (Port("x", dtypes.f32, (1,)),),
        "outputs": (Port("y", dtypes.f32, (1,)),),
        "states": (),
        "constants": (),
        "dims": (),
        "allocations": (),
        "offsets": (),
        "instructions": {7: "net.onnx:Gather_7"},
    }
    return Artifact(**(plain | fields))  # type: ignore[arg-type]


def affine(scale: float = 2.0) -> Artifact:
    """y = x * scale + x for x : f32[N,M], with a constant, a run-time extent, an arena and the pool."""
    return artifact(
        image(_AFFINE),
        inputs=(Port("x", dtypes.f32, (N, M)),),
        outputs=(Port("y", dtypes.f32, (N, M)),),
        constants=(np.array([scale], np.float32),),
        dims=(N * M,),
        allocations=(Allocation("t", N * M * 4, 0, 1),),
        offsets=None,
    )


def spin(writes: bool = False) -> Artifact:
    """Returns x : f32[1] if it is 0, else runs until it is stopped. `writes`: it says that it has written a state."""
    return artifact(image(_SPIN, writes))


def count() -> Artifact:
    """Adds x to the state w : f32[1], and returns the sum."""
    return artifact(image(_COUNT, True), states=(Port("w", dtypes.f32, (1,)),), written=("w",))


def fail() -> Artifact:
    """Fails with the status and details given in x : i64[3]."""
    return artifact(image(_FAIL), inputs=(Port("x", dtypes.i64, (3,)),))


def copy() -> Artifact:
    """Two outputs: x : bf16[N] and N."""
    return artifact(
        image(_COPY),
        inputs=(Port("x", dtypes.bf16, (N,)),),
        outputs=(Port("y", dtypes.bf16, (N,)), Port("count", dtypes.i64, ())),
        dims=(N,),
    )


def empty(inputs: tuple[Port, ...] = (), outputs: tuple[Port, ...] = (), **fields: object) -> Artifact:
    """Does nothing; its outputs are never written."""
    return artifact(image(_EMPTY), inputs=inputs, outputs=outputs, **fields)
