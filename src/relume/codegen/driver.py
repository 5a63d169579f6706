"""The driver: `relume_run`, which calls the kernels of one program in order.

A traced driver calls the same kernels and notes when it starts and when each call is done, in nanoseconds of
CLOCK_MONOTONIC, in the context's `stamps`. Any other driver knows nothing of it: tracing costs nobody else anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from relume.base.abi import FIELD, IMPORTS, Status
from relume.codegen.calls import PARALLEL_WORK, Address, Call, Number, Schedule
from relume.kernels.ir import Function, Int, Reg
from relume.program.types import Space

_TABLES = {
    Space.INPUT.value: "inputs",
    Space.OUTPUT.value: "outputs",
    Space.STATE.value: "states",
    Space.CONSTANT.value: "constants",
}
"""The spaces that have a table of pointers. The arena and the counters are one pointer each."""

_KERNEL = "(ptr, ptr, ptr, i64, i64, i64)"


_STAMP = Template("""\
define internal void @relume_stamp(ptr %ctx, i64 %index) nounwind noinline {
  %time = alloca [2 x i64], align 16
  %stamps.at = getelementptr i8, ptr %ctx, i64 $stamps
  %stamps = load ptr, ptr %stamps.at, align 8
  %none = icmp eq ptr %stamps, null
  br i1 %none, label %done, label %note
note:
  %imports.at = getelementptr i8, ptr %ctx, i64 $imports
  %imports = load ptr, ptr %imports.at, align 8
  %clock_gettime.at = getelementptr i8, ptr %imports, i64 $clock_gettime
  %clock_gettime = load ptr, ptr %clock_gettime.at, align 8
  %ignored = call i32 %clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest.at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %stamp.at = getelementptr [0 x i64], ptr %stamps, i64 0, i64 %index
  store i64 %now, ptr %stamp.at, align 8
  br label %done
done:
  ret void
}
""").substitute(stamps=FIELD["stamps"], imports=FIELD["imports"], clock_gettime=8 * IMPORTS.index("clock_gettime"))


def emit(schedule: Schedule, symbols: Sequence[str], *, traced: bool = False) -> str:
    """The IR of `i32 relume_run(ptr ctx)`; `symbols` names the kernel of each call."""
    return _Driver(schedule, traced).emit(symbols) + (_STAMP if traced else "")


class _Driver:
    """`relume_run` under construction."""

    def __init__(self, schedule: Schedule, traced: bool) -> None:
        self.schedule = schedule
        self.traced = traced
        self.run = Function("relume_run", [("ptr", "ctx")], attributes="nounwind")
        self.ctx = self.run.params[0]
        self.failures: list[tuple[Reg, int, str]] = []  # status, instruction id, block that it comes from
        run = self.run
        # One array of each kind for all calls: a kernel reads them only while it runs.
        self.operands = self._array("ptr", max((len(call.operands) for call in schedule.calls), default=0))
        self.extents = self._array("i64", max((len(call.extents) for call in schedule.calls), default=0))
        self.bases = {name: run.load("ptr", run.address(self.ctx, FIELD[name]), 8) for name in self._used_tables()}

    def _array(self, type_: str, count: int) -> Reg:
        return self.run.assign("ptr", f"alloca [{max(1, count)} x {type_}], align 64")

    def _used_tables(self) -> list[str]:
        calls = self.schedule.calls
        used = {_TABLES.get(a.space, "counters") for call in calls for a in call.operands if a.space != "arena"}
        if any(address.space == "arena" for call in calls for address in call.operands):
            used |= {"arena"} | ({"offsets"} if self.schedule.offsets is None else set())
        if self.schedule.dims:
            used.add("dims")
        return sorted(used)

    def emit(self, symbols: Sequence[str]) -> str:
        run = self.run
        first_write = next((call for call in self.schedule.calls if call.writes_state), None)
        self._stamp(0)
        for position, (call, symbol) in enumerate(zip(self.schedule.calls, symbols, strict=True), 1):
            self._fail_unless_ok(run.call("i32", "relume_poll", ("ptr", self.ctx), ("i64", 0)), call)
            for index, address in enumerate(call.operands):
                run.store(self._pointer(address), run.address(self.operands, index, 8), 8)
            for index, extent in enumerate(call.extents):
                run.store(self._i64(extent), run.address(self.extents, index, 8), 8)
            if call is first_write:
                run.store(Reg("1", "i64"), run.address(self.ctx, FIELD["written"]), 8)
            self._fail_unless_ok(self._call(call, symbol), call)
            self._stamp(position)
        run.ret(int(Status.OK))
        if self.failures:
            self._failed()
        return run.text()

    def _stamp(self, index: int) -> None:
        if self.traced:
            self.run.line(f"call void @relume_stamp(ptr {self.ctx}, i64 {index})")

    def _number(self, number: Number) -> Int:
        if isinstance(number, int):
            return number
        return self.run.load("i64", self.run.address(self.bases["dims"], number.index, 8), 8)

    def _i64(self, number: Number) -> Reg:
        return Reg(str(self._number(number)), "i64")

    def _pointer(self, address: Address) -> Reg:
        run = self.run
        if address.space == Space.ARENA.value:
            base = self.bases["arena"]
            if self.schedule.offsets is None:
                base = run.address(base, run.load("i64", run.address(self.bases["offsets"], address.index, 8), 8))
        elif address.space == Space.COUNTER.value:
            base = run.address(self.bases["counters"], address.index, 8)
        else:
            base = run.load("ptr", run.address(self.bases[_TABLES[address.space]], address.index, 8), 8)
        return run.address(base, self._number(address.offset))

    def _call(self, call: Call, symbol: str) -> Reg:
        """Calls the kernel here or through the pool, by its work; the status."""
        run = self.run
        # Hidden: the linker puts it into the same image, so its address is relative to here.
        run.declare(f"declare hidden i32 @{symbol}{_KERNEL}")
        tasks, work = self._i64(call.tasks), self._number(call.work)

        def direct() -> Reg:
            arguments = f"ptr {self.ctx}, ptr {self.operands}, ptr {self.extents}, i64 0, i64 {tasks}, i64 0"
            return run.assign("i32", f"call i32 @{symbol}({arguments})")

        def parallel() -> Reg:
            shared = (("ptr", self.ctx), ("ptr", f"@{symbol}"), ("ptr", self.operands), ("ptr", self.extents))
            return run.call("i32", "relume_parallel", *shared, ("i64", tasks))

        if isinstance(work, int):
            alone = work < PARALLEL_WORK or (isinstance(call.tasks, int) and call.tasks < 2)
            return direct() if alone else parallel()
        large = run.compare("sge", work, PARALLEL_WORK)
        here, there, done = run.label("direct"), run.label("parallel"), run.label("called")
        run.line(f"br i1 {large}, label %{there}, label %{here}")
        run.start(here)
        a = direct()
        run.jump(done)
        run.start(there)
        b = parallel()
        run.jump(done)
        run.start(done)
        return run.assign("i32", f"phi i32 [ {a}, %{here} ], [ {b}, %{there} ]")

    def _fail_unless_ok(self, status: Reg, call: Call) -> None:
        run = self.run
        bad = run.assign("i1", f"icmp ne i32 {status}, 0")
        following = run.label("next")
        run.line(f"br i1 {bad}, label %failed, label %{following}")
        self.failures.append((status, call.id, run.block))
        run.start(following)

    def _failed(self) -> None:
        """The one exit for failures: notes which instruction it was."""
        run = self.run
        run.start("failed")
        statuses = ", ".join(f"[ {status}, %{block} ]" for status, _, block in self.failures)
        ids = ", ".join(f"[ {id_}, %{block} ]" for _, id_, block in self.failures)
        status = run.assign("i32", f"phi i32 {statuses}")
        failed = run.assign("i64", f"phi i64 {ids}")
        run.store(failed, run.address(self.ctx, FIELD["failed"]), 8)
        run.ret(status)
