"""Which layer an operation belongs to, by the names that JAX gives to what it traces."""

from __future__ import annotations

import re

# Of the names on the way to an operation, those that are no layer's.
_NOT_A_LAYER = re.compile(
    r"^(jit\(.*\)|pjit|while|body|cond|branch_\d+_fun|closed_call|custom_jvp_call.*|"
    r"custom_vjp_call.*|checkpoint|activation_checkpointing\d*|rematted_computation|shmap_body|shard_map|jvp|"
    r"transpose|vmap|core_call|_run_whole|_forward|_backward.*|compute)$"
)
_WRAPPED = re.compile(r"\b(transpose|jvp|vmap|rematted_computation|checkpoint)\(")


def where(path: str, *, trains: bool) -> tuple[str, str]:
    """Return the layer of an operation, and in which pass through it that is.

    Args:
        path: as in `jit(_run_whole)/while/body/transpose(jvp(stem))/conv_general_dilated`.
        trains: whether the program computes gradients: what is then outside of both passes is
            part of the update.

    Returns:
        The layer's own path, empty for what belongs to none; and `"forward"`, `"backward"`,
        `"update"` (of the weights), or `"other"` (the loop, its data, metrics).
    """
    plain = _WRAPPED.sub("", path).replace(")", "")
    plain = re.sub(r"\bjit\(", "jit:", plain)
    names = [name for name in plain.split("/")[:-1] if not _no_layer(name)]
    if "transpose(" in path:
        part = "backward"
    elif "jvp(" in path or (names and not trains):
        part = "forward"
    else:
        part = "update" if names else "other"
    return "/".join(dict.fromkeys(names)), part


def _no_layer(name: str) -> bool:
    return not name or name.startswith("jit:") or bool(_NOT_A_LAYER.match(name))
