"""A place in a text, and the words that can be read from there. Every error names the line and shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from relume.base.errors import ModelError
from relume.graph import literals

_BLANK = re.compile(r"(?:\s+|//[^\n]*)+")
_WORD = re.compile(r"[A-Za-z_]\w*")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_Item = TypeVar("_Item")


class TextError(ModelError):
    """Text that is malformed or does not fit the ops. `line` counts from 1."""

    def __init__(self, what: str, line: int, text: str, expected: object = None, got: object = None) -> None:
        self.line = line
        super().__init__(what, where=f"line {line}", expected=expected, got=got, context=text)


class Cursor:
    """Reads words from `text`, starting at `at`; comments are blanks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._mark = (0, 1)
        self._ahead = (-1, 0)

    def fail(self, what: str, at: int | None = None, expected: object = None, got: object = None) -> NoReturn:
        """Raises `TextError` for the place `at`, or for where reading has come to."""
        at = min(self.at if at is None else at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        raise TextError(what, self.line(at), self.text[start : end if end >= 0 else None], expected, got)

    def line(self, at: int) -> int:
        """The line of a place, from 1."""
        # Counted from the last place that was asked for: places mostly come in ascending order.
        known_at, known_line = self._mark
        if at < known_at:
            known_at, known_line = 0, 1
        line = known_line + self.text.count("\n", known_at, at)
        self._mark = (at, line)
        return line

    def ahead(self) -> int:
        """Where the next word starts. Only `skip` goes there: a comment may still turn out to be a node's place."""
        at, end = self._ahead
        if at != self.at:
            match = _BLANK.match(self.text, self.at)
            end = match.end() if match else self.at
            self._ahead = (self.at, end)
        return end

    def skip(self) -> None:
        """Skips blanks and comments."""
        self.at = self.ahead()

    def peek(self, *marks: str) -> bool:
        """Whether one of the marks comes next."""
        return self.text.startswith(marks, self.ahead())

    def accept(self, mark: str) -> bool:
        """Reads the mark if it comes next."""
        if not self.peek(mark):
            return False
        self.at = self.ahead() + len(mark)
        return True

    def expect(self, mark: str) -> None:
        """Reads the mark."""
        if not self.accept(mark):
            self.fail(f"{mark!r} is missing", expected=mark, got=self.text[self.at : self.at + 20].split("\n")[0])

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Reads what the pattern matches; `what` names it in the error."""
        self.skip()
        match = pattern.match(self.text, self.at)
        if not match:
            self.fail(f"{what} is missing", expected=what, got=self.text[self.at : self.at + 20].split("\n")[0])
        self.at = match.end()
        return match

    def word(self, what: str) -> str:
        """Reads a word of letters, digits and `_`."""
        return self.match(_WORD, what).group()

    def accept_word(self, word: str) -> bool:
        """Reads the word if it, and no longer one, comes next."""
        match = _WORD.match(self.text, self.ahead())
        if not match or match.group() != word:
            return False
        self.at = match.end()
        return True

    def string(self) -> str:
        """Reads a JSON string."""
        at = self.at
        try:
            return str(json.loads(self.match(STRING, "a string").group()))
        except ValueError:
            self.fail("not a string as JSON writes it", at)

    def name(self, sigil: str) -> str:
        """Reads a name, quoted or plain, behind `%` or `@`."""
        self.expect(sigil)
        if self.text.startswith('"', self.at):
            return self.string()
        match = literals.PLAIN_NAME.match(self.text, self.at)
        if not match:
            self.fail(f"a name is missing behind {sigil}")
        self.at = match.end()
        return match.group()

    def list_of(self, item: Callable[[], _Item], close: str) -> list[_Item]:
        """Items between commas up to `close`, which is consumed."""
        items: list[_Item] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def some(self, item: Callable[[], _Item]) -> list[_Item]:
        """Items that start with a value, between commas; none where no value follows."""
        items: list[_Item] = []
        while self.accept(",") if items else self.peek("%", "@"):
            items.append(item())
        return items

    def balanced(self, stops: str) -> str:
        """The text up to the first of `stops` that stands outside brackets and strings."""
        start, depth = self.at, 0
        marks = re.compile(rf"{STRING.pattern}|[\[\]()\n{re.escape(stops)}]|$")
        while True:
            match = marks.search(self.text, self.at)
            mark = match.group() if match else ""
            if not match or mark in ("", "\n"):
                self.fail(f"one of {' '.join(stops)} is missing on this line", start)
            if depth == 0 and mark in stops:
                self.at = match.start()
                return self.text[start : self.at]
            depth += (mark in "[(") - (mark in "])")
            self.at = match.end()
