"""Mistakes a user can mend, said in three short lines: what, where, and what to do."""

from __future__ import annotations


class AsterismError(Exception):
    """A mistake outside the program: what is wrong, where (dotted key, file and row), and the fix."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  where: {self.where}"] if self.where else []
        lines += [f"  fix:   {self.fix}"] if self.fix else []
        return "\n".join(lines)
