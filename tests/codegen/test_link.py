"""The linker resolves what it may, refuses the rest before anything is loaded, and survives damaged objects."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import Mapped

from relume.base.errors import CompileError
from relume.base.targets import AVX2
from relume.codegen import link, llvm


def compiled(text: str) -> bytes:
    return llvm.compile_ir(text, AVX2)


def linked(*texts: str) -> Mapped:
    return Mapped(link.link([(f"part{index}", compiled(text)) for index, text in enumerate(texts)]))


def call(mapped: Mapped, name: str, *values: int) -> int:
    from ctypes import c_int64

    return mapped(name, c_int64, *[c_int64] * len(values))(*values)


ANSWER = "define i64 @answer(i64 %x) { %y = add i64 %x, 40\n ret i64 %y }"


def test_a_call_from_one_object_into_another() -> None:
    caller = "declare i64 @answer(i64)\ndefine i64 @ask() { %y = call i64 @answer(i64 2)\n ret i64 %y }"
    assert call(linked(caller, ANSWER), "ask") == 42
    assert call(linked(ANSWER, caller), "ask") == 42


@pytest.mark.parametrize("visibility", ["", "hidden"])
def test_the_address_of_a_function_in_another_object(visibility: str) -> None:
    taker = f"declare {visibility} i64 @answer(i64)\ndefine ptr @address() {{ ret ptr @answer }}"
    mapped = linked(taker, ANSWER)
    assert call(mapped, "address") == mapped.address("answer")


def test_constants_and_tables_of_constants() -> None:
    text = """
@table = internal constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
define i64 @prime(i64 %i) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}"""
    assert [call(linked(text), "prime", index) for index in range(4)] == [2, 3, 5, 7]


def test_a_switch_becomes_a_relative_jump_table() -> None:
    cases = "\n".join(f"    i64 {value}, label %c{value}" for value in range(12))
    effects = "\n".join(
        f"c{value}:\n  %r{value} = {('mul', 'xor', 'add')[value % 3]} i64 %x, {value * value + 3}\n  br label %out"
        for value in range(12)
    )
    phis = ", ".join(f"[ %r{value}, %c{value} ]" for value in range(12))
    text = f"""define i64 @pick(i64 %k, i64 %x) {{
  switch i64 %k, label %none [
{cases}
  ]
{effects}
none:
  br label %out
out:
  %r = phi i64 [ -1, %none ], {phis}
  ret i64 %r
}}"""
    mapped = linked(text)
    assert call(mapped, "pick", 3, 5) == 5 * 12
    assert call(mapped, "pick", 11, 5) == 5 + 124
    assert call(mapped, "pick", 12, 5) == -1


def test_allowed_symbols_go_through_one_slot_each() -> None:
    text = """
declare ptr @memcpy(ptr, ptr, i64)
define void @copy(ptr %to, ptr %from, i64 %n) { %x = call ptr @memcpy(ptr %to, ptr %from, i64 %n)\n ret void }
define ptr @which() { ret ptr @memcpy }"""
    mapped = linked(text, text.replace("@copy", "@again").replace("@which", "@whence"))
    assert [name for _, name in mapped.image.slots] == ["memcpy"]
    (at, _), *_ = mapped.image.slots
    assert not any(mapped.image.code[at : at + 8]), "the slot is for the loader to fill"
    source, target = np.arange(20.0), np.zeros(20)
    call(mapped, "copy", target.ctypes.data, source.ctypes.data, 160)
    assert np.array_equal(source, target)
    assert call(mapped, "which") == int.from_bytes(mapped.memory[at : at + 8], "little")


def test_an_unknown_symbol_is_refused_by_name() -> None:
    text = """declare float @powf(float, float)
define float @f(float %x) {
  %y = call float @powf(float %x, float %x)
  ret float %y
}"""
    with pytest.raises(CompileError, match=r"kernel relume_pow_12 calls 'powf'"):
        link.link([("relume_pow_12", compiled(text))])


def test_a_symbol_that_is_defined_twice_is_refused() -> None:
    with pytest.raises(CompileError, match=r"answer is defined twice(.|\n)*first and second"):
        link.link([("first", compiled(ANSWER)), ("second", compiled(ANSWER))])


def test_internal_helpers_of_one_name_do_not_meet() -> None:
    def text(name: str, value: int) -> str:
        return f"""define internal i64 @helper(i64 %x) noinline {{ %y = add i64 %x, {value}\n ret i64 %y }}
define i64 @{name}(i64 %x) {{ %y = call i64 @helper(i64 %x)\n ret i64 %y }}"""

    mapped = linked(text("a", 1), text("b", 2))
    assert (call(mapped, "a", 10), call(mapped, "b", 10)) == (11, 12)
    assert list(mapped.image.exports) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("@v = global i64 3\ndefine ptr @f() { ret ptr @v }", "writable data in section .data"),
        ("@v = global i64 0\ndefine ptr @f() { ret ptr @v }", "writable data in section .bss"),
        ("@v = thread_local global i64 3\ndefine ptr @f() { ret ptr @v }", "of a kind|writable data"),
        ("@v = common global i64 0\ndefine ptr @f() { ret ptr @v }", "writable data|neither code nor a constant"),
        ("@t = constant [1 x ptr] [ptr @f]\ndefine ptr @f() { ret ptr @t }", "absolute address"),
    ],
)
def test_what_an_image_cannot_hold_is_refused(text: str, what: str) -> None:
    with pytest.raises(CompileError, match=what):
        link.link([("k", compiled(text))])


def test_alignment_is_kept() -> None:
    vector = "<16 x float> <" + ", ".join(f"float {value}.0" for value in range(16)) + ">"
    text = f"""@c = constant [16 x i8] zeroinitializer, align 1
@v = internal constant {vector}, align 64
define ptr @vector() {{ ret ptr @v }}"""
    mapped = linked(ANSWER, text)
    assert (call(mapped, "vector") - mapped.base) % 64 == 0


def test_the_image_depends_on_the_objects_only() -> None:
    parts = [("a", compiled(ANSWER)), ("b", compiled(ANSWER.replace("answer", "other")))]
    assert link.link(parts) == link.link(parts)


VICTIM = compiled(
    "@t = internal constant [3 x i64] [i64 1, i64 2, i64 3]\ndeclare ptr @memset(ptr, i32, i64)\n"
    "define i64 @f(ptr %p, i64 %i) { %x = call ptr @memset(ptr %p, i32 0, i64 8)\n"
    " %q = getelementptr i64, ptr @t, i64 %i\n %v = load i64, ptr %q\n ret i64 %v }"
)


@pytest.mark.parametrize("size", [0, 1, 15, 63, 64, 100, len(VICTIM) // 2, len(VICTIM) - 1])
def test_a_truncated_object_is_refused(size: int) -> None:
    with pytest.raises(CompileError, match="the object of cut is damaged"):
        link.link([("cut", VICTIM[:size])])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_damaged_object_links_or_is_refused_but_never_crashes(seed: int, flips: int) -> None:
    dice = random.Random(seed)
    damaged = bytearray(VICTIM)
    for _ in range(flips):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    try:
        image = link.link([("damaged", bytes(damaged))])
    except CompileError:
        return
    assert all(0 <= at <= len(image.code) for at in image.exports.values())
