"""Puts a mutant into a process: into functions that are loaded, or before its file is loaded."""

import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any

from tests.mutation.mutants import Mutant

WRAPPED = ("fget", "func", "__func__", "__wrapped__")


class CannotSwapError(Exception):
    """The change does not fit a function that is already loaded."""


def swap(mutant: Mutant) -> None:
    """Give the loaded function the mutant's code; everybody who holds the function runs it.

    Raises:
        CannotSwapError: the change is outside of functions, or the function is not to be found.
    """
    module = sys.modules[mutant.module]
    where = (mutant.function, mutant.function_line)
    functions = [f for f in _functions(module, module.__name__) if _place(f.__code__) == where]
    code = compile(mutant.mutated, str(module.__file__), "exec", dont_inherit=True)
    codes = [inner for inner in _codes(code) if _place(inner) == where]
    if not functions or len(codes) != 1:
        raise CannotSwapError(mutant.function)
    for function in functions:
        try:
            function.__code__ = codes[0]
        except ValueError as error:
            raise CannotSwapError(mutant.function) from error


def _place(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _functions(owner: Any, module: str) -> Iterator[types.FunctionType]:
    """The functions of a module and of its classes, out of what decorators made of them."""
    for value in list(vars(owner).values()):
        for part in (value, *(getattr(value, name, None) for name in WRAPPED)):
            if isinstance(part, types.FunctionType):
                yield part
        if inspect.isclass(value) and value.__module__ == module and value is not owner:
            yield from _functions(value, module)


class MutantFinder(MetaPathFinder):
    """Loads the mutant where its module is imported."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return spec_from_file_location(fullname, self._mutant.path, loader=_MutantLoader(self._mutant))


class _MutantLoader(Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._mutant.mutated, self._mutant.path, "exec", dont_inherit=True), vars(module))
