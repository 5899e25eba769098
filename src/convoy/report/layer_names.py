"""The layer of an operation, found by the names that JAX gives to traced operations."""

import re

# Names in the path of an operation that are not layers.
_NOT_A_LAYER = re.compile(
    r"^(jit\(.*\)|pjit|while|body|cond|branch_\d+_fun|closed_call|custom_jvp_call.*|"
    r"custom_vjp_call.*|checkpoint|activation_checkpointing\d*|rematted_computation|shmap_body|shard_map|jvp|"
    r"transpose|vmap|core_call|_run_whole|run_steps|_forward|_backward.*|compute)$"
)
_WRAPPED = re.compile(r"\b(transpose|jvp|vmap|rematted_computation|checkpoint)\(")


def find_layer(path: str, *, trains: bool) -> tuple[str, str]:
    """Return the layer of an operation, and the pass.

    Args:
        path: as in `jit(run_steps)/while/body/transpose(jvp(stem))/conv_general_dilated`.
        trains: whether the program computes gradients. If so, operations outside both passes are
            part of the weight update.

    Returns:
        The layer's path, empty if the operation belongs to none; and `"forward"`, `"backward"`,
        `"update"` (of the weights), or `"other"` (the loop, its data, metrics).
    """
    plain = _WRAPPED.sub("", path).replace(")", "")
    plain = re.sub(r"\bjit\(", "jit:", plain)
    names = [name for name in plain.split("/")[:-1] if not _is_no_layer(name)]
    if "transpose(" in path:
        part = "backward"
    elif "jvp(" in path or (names and not trains):
        part = "forward"
    else:
        part = "update" if names else "other"
    return "/".join(dict.fromkeys(names)), part


def _is_no_layer(name: str) -> bool:
    return not name or name.startswith("jit:") or bool(_NOT_A_LAYER.match(name))
