"""Complaints of LLVM become errors with a line to look at, and a missing feature never ends the process."""

import pytest

from relume.base.errors import CompileError
from relume.base.targets import AVX2, AVX512
from relume.codegen import llvm


def test_a_syntax_error_shows_its_numbered_line() -> None:
    with pytest.raises(CompileError) as caught:
        llvm.compile_ir("define i32 @f() {\n  %x = add i32 1, %nowhere\n  ret i32 %x\n}", AVX2, name="relume_map_1")
    text = str(caught.value)
    assert "relume_map_1" in text
    assert "at: line 2" in text
    assert "use of undefined value '%nowhere'" in text
    assert "    2   %x = add i32 1, %nowhere" in text


def test_the_first_line_is_line_one() -> None:
    with pytest.raises(CompileError, match="at: line 1\n"):
        llvm.compile_ir("nonsense", AVX2)


def test_what_the_verifier_refuses_shows_its_line() -> None:
    text = """define i32 @f(i1 %c) {
  br i1 %c, label %a, label %b
a:
  %x = add i32 1, 2
  br label %b
b:
  ret i32 %x
}"""
    with pytest.raises(CompileError) as caught:
        llvm.compile_ir(text, AVX2, name="relume_map_2")
    assert "Instruction does not dominate all uses" in str(caught.value)
    assert "at: line 4" in str(caught.value)


AVX512_INTRINSIC = """declare <16 x float> @llvm.x86.avx512.max.ps.512(<16 x float>, <16 x float>, i32)
define void @f(ptr %p) {
  %x = load <16 x float>, ptr %p
  %y = call <16 x float> @llvm.x86.avx512.max.ps.512(<16 x float> %x, <16 x float> %x, i32 4)
  store <16 x float> %y, ptr %p
  ret void
}"""


def test_an_intrinsic_that_the_target_lacks_is_refused_before_llvm_sees_it() -> None:
    with pytest.raises(CompileError, match="x86-64-avx2 has no avx512f"):
        llvm.compile_ir(AVX512_INTRINSIC, AVX2)
    assert "zmm" in llvm.assembly(AVX512_INTRINSIC, AVX512)


def test_an_intrinsic_without_a_known_feature_is_refused() -> None:
    text = "declare void @llvm.x86.rdpid()\ndefine void @f() {\n  call void @llvm.x86.rdpid()\n  ret void\n}"
    with pytest.raises(CompileError, match="no feature is known"):
        llvm.compile_ir(text, AVX512)


def test_the_target_decides_the_registers() -> None:
    text = """define void @f(ptr %p) {
  %x = load <16 x float>, ptr %p
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %p
  ret void
}"""
    assert "zmm" not in llvm.assembly(text, AVX2)
    assert "zmm" in llvm.assembly(text, AVX512)


def test_objects_are_equal_byte_for_byte() -> None:
    assert llvm.compile_ir(AVX512_INTRINSIC, AVX512) == llvm.compile_ir(AVX512_INTRINSIC, AVX512)
