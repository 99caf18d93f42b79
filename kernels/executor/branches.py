"""`if` statements that programs of one group may take both ways, without splitting the group.

Splitting is always right, but it multiplies: a binary search over sequences splits at every step, and programs that
searched differently never run together again. So an `if` whose branches do nothing but assign to names is run as a GPU
runs it. Both branches are executed, each with the programs that did not take it switched off (their loads and stores
do nothing), and every name assigned then gets each program's own value. In source:

    if test:                     branch = __branch__(test)
        a = x                    if branch.agreed:
    else:                            if branch.taken: a = x
        a = y           ->           else: a = y
                                 else:
                                     before = (locals().get("a"),)
                                     with branch.side(True): a = x
                                     then = (locals().get("a"),)
                                     (a,) = before
                                     with branch.side(False): a = y
                                     (a,) = branch.merged(then, (locals().get("a"),))

An `if` that stores, loops, returns or calls for its effect stays as it is, and splits the group.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np

from .memory import Memory


class Branch:
    """The outcome of one test for the programs of a group.

    agreed: all of them go the same way; `taken` says which. Otherwise `taken` is a [g] array.
    """

    def __init__(self, taken: bool | np.ndarray, memory: Memory, select: Callable) -> None:
        self.agreed = not isinstance(taken, np.ndarray)
        self.taken = taken
        self._memory = memory
        self._select = select

    def side(self, which: bool) -> AbstractContextManager[None]:
        """Switch off the programs that do not go this way."""
        return self._memory.only(self.taken if which else ~self.taken)

    def merged(self, then: tuple, otherwise: tuple) -> Iterator[object]:
        """Each name's value per program. A name that only one side assigned has only that value."""
        for a, b in zip(then, otherwise, strict=True):
            yield b if a is None else a if b is None or a is b else self._select(self.taken, a, b)


def only_assigns(statements: list[ast.stmt]) -> bool:
    """Do these statements do nothing but give values to plain names?"""
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name()]) | ast.AugAssign(target=ast.Name()):
                continue
            case ast.If(body=body, orelse=orelse) if only_assigns(body) and only_assigns(orelse):
                continue
        return False
    return True


def names_assigned(statements: list[ast.stmt]) -> list[str]:
    """The names in the order in which they are first assigned."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)


def run_both_ways(node: ast.If, names: list[str], number: int) -> list[ast.stmt]:
    """The statements that stand for an `if` that assigns to these names. `number` keeps nested ones apart."""
    values = "(" + "".join(f"locals().get({name!r})," for name in names) + ")"
    targets = "(" + "".join(f"{name}," for name in names) + ")"
    branch, before, then = (f"__{word}{number}__" for word in ("branch", "before", "then"))
    template = f"""
{branch} = __branch__(__test__)
if {branch}.agreed:
    if {branch}.taken: __body__
    else: __orelse__
else:
    {before} = {values}
    with {branch}.side(True): __body__
    {then} = {values}
    {targets} = {before}
    with {branch}.side(False): __orelse__
    {targets} = {branch}.merged({then}, {values})
"""
    return (
        _Filled({"__test__": node.test, "__body__": node.body, "__orelse__": node.orelse or [ast.Pass()]})
        .visit(ast.parse(template))
        .body
    )


class _Filled(ast.NodeTransformer):
    """Puts source in place of the names that stand for it."""

    def __init__(self, parts: dict[str, ast.expr | list[ast.stmt]]) -> None:
        self._parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._parts.get(node.id, node)

    def visit_Expr(self, node: ast.Expr) -> list[ast.stmt] | ast.Expr:
        return self._parts[node.value.id] if isinstance(node.value, ast.Name) else node
