"""Networks on paper, for tests of the planner."""

from convoy.plan.machine import Machine
from convoy.plan.profile import Profile

MB = 1_000_000


def chain(shares=(1, 1, 1, 1), **changes):
    """Return a chain of layers: 10 MB of weights and 1 MB of activations for a sample each."""
    count = len(shares)
    settings = {
        "names": tuple(f"layer{number}" for number in range(count)),
        "allowed_cuts": tuple(range(1, count)),
        "time_shares": tuple(share / sum(shares) for share in shares),
        "weights": (10 * MB,) * count,
        "statistics": (0,) * count,
        "activations": (1.0 * MB,) * count,
        "live": (1.0 * MB,) * count,
        "step_times": ((1, 0.1),),
    }
    return Profile(**(settings | changes))


def machine(devices=4, memory=1e12, **changes):
    settings = {"per_host": min(devices, 16), "link": 1e15, "exchange": 1e9, "update": 1e12}
    settings["host_action"] = 0.0
    return Machine(devices=devices, memory=memory, **(settings | changes))
