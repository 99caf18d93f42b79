"""The parts of flash-linear-attention that the mixers use, imported without loading torch's compiler.

FLA decorates functions with `torch.compile` and `torch.compiler.disable` when it is imported, and either decorator
loads dynamo and inductor: over a second, for functions that this program never compiles. While FLA is being imported
the decorators are deferred: what they return applies the real decorator when it first matters. `disable` matters only
to dynamo, so until something has loaded dynamo the plain function is called.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper

import torch


class _Deferred:
    """A function whose decorator is applied when it is first needed."""

    def __init__(
        self, decorate: Callable[[Callable], Callable], function: Callable, needed: Callable[[], bool]
    ) -> None:
        update_wrapper(self, function)
        self._decorate, self._function, self._needed = decorate, function, needed
        self._decorated: Callable | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._decorated is None:
            if not self._needed():
                return self._function(*args, **kwargs)
            self._decorated = self._decorate(self._function)
        return self._decorated(*args, **kwargs)

    def __get__(self, instance: object, owner: type) -> object:
        return (
            self
            if instance is None
            else self.__class__(
                lambda f: self._decorate(self._function).__get__(instance, owner),
                self._function.__get__(instance, owner),
                self._needed,
            )
        )


def _deferring(decorator: Callable, needed: Callable[[], bool]) -> Callable:
    def apply(function: Callable | None = None, *args: object, **options: object) -> object:
        def decorate(f: Callable) -> Callable:
            return decorator(f, *args, **options)

        if function is None:
            return lambda f: _Deferred(decorate, f, needed)
        return _Deferred(decorate, function, needed)

    return apply


@contextmanager
def _deferred_decorators() -> Iterator[None]:
    if "torch._dynamo" in sys.modules:  # nothing to save
        yield
        return
    compile, disable = torch.compile, torch.compiler.disable
    torch.compile = _deferring(compile, lambda: True)
    torch.compiler.disable = _deferring(disable, lambda: "torch._dynamo" in sys.modules)
    try:
        yield
    finally:
        torch.compile, torch.compiler.disable = compile, disable


with _deferred_decorators(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FLA warns that there is no GPU; this program says so itself
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.l2norm import l2norm_fwd
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
    from fla.ops.common.chunk_o import chunk_fwd_o
    from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
    from fla.ops.gated_delta_rule.gate import gdn_gate_chunk_cumsum
    from fla.ops.kda import chunk_kda
    from fla.ops.utils.constant import RCP_LN2
    from fla.ops.utils.index import prepare_chunk_indices

__all__ = [
    "RCP_LN2",
    "causal_conv1d",
    "chunk_fwd_o",
    "chunk_gated_delta_rule_fwd_h",
    "chunk_gated_delta_rule_fwd_intra",
    "chunk_kda",
    "gdn_gate_chunk_cumsum",
    "l2norm_fwd",
    "prepare_chunk_indices",
    "rms_norm_gated",
]
