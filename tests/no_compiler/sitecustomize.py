"""Leaves torch's compiler out of the scripts that tests start: optimisers of torch, and DDP, would import it, and no
test needs it there.  That takes half of such a process's processor time.  The fixture `no_compiler` has it read."""

import sys
import types


def disable(function=None, *_, **__):  # type: ignore[no-untyped-def]
    return function or disable


compiler = types.ModuleType("torch._dynamo")
compiler.disable, compiler.graph_break = disable, lambda *_: None  # type: ignore[attr-defined]
compiler.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")  # type: ignore[attr-defined]
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)  # type: ignore[attr-defined]
sys.modules["torch._dynamo"] = compiler
