"""Check of the custom calls in a program: functions outside of XLA that it names.

XLA ends the process if a program calls a function that is unknown, or one with arguments that the
function does not expect. `jax.export` writes none but these, so a program with others was not made
by `convoy export`.
"""

from __future__ import annotations

import re

ALLOWED = frozenset(
    {
        "ApproxTopK",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "annotate_device_placement",
        "cu_threefry2x32_ffi",
        "hip_threefry2x32_ffi",
        "shape_assertion",
        "stablehlo.dynamic_approx_top_k",
        "stablehlo.dynamic_reduce_window",
        "stablehlo.dynamic_rng_bit_generator",
        "stablehlo.dynamic_top_k",
    }
)
_CALL = re.compile(r'custom_call\s+@(?:"([^"]*)"|([\w.$-]+))\(')


def unknown_calls(module: str) -> list[str]:
    """Return the custom calls of a program that are not allowed.

    Args:
        module: the program as MLIR text.
    """
    # Lines of source locations contain file names, which may contain anything.
    code = "\n".join(line for line in module.splitlines() if not line.startswith("#loc"))
    names = [quoted or plain for quoted, plain in _CALL.findall(code)]
    unknown = sorted(set(names) - ALLOWED)
    # An operation in another syntax counts as unknown.
    if code.count("custom_call") != len(names):
        unknown.append("custom_call")
    return unknown
