"""What `convoy.cpu.status()` answers."""

from dataclasses import dataclass, field

from convoy.cpu import library, tally, threads


@dataclass(frozen=True)
class Status:
    """State of the CPU kernels in this process.

    Attributes:
        active: whether operations are lowered by Convoy's rules.
        native: whether oneDNN runs them, and not XLA in the layout it is fast at.
        why_not: why not active or not native, empty if both.
        onednn: version of oneDNN, empty without it.
        instruction_set: what oneDNN may use of the CPU, empty without it.
        cores: cores that the process's CPU devices share.
        lowered: number of operations each kernel was chosen for.
    """

    active: bool
    native: bool
    why_not: str = ""
    onednn: str = ""
    instruction_set: str = ""
    cores: int = 0
    lowered: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.active:
            return f"CPU kernels: off ({self.why_not})"
        if self.native:
            head = f"CPU kernels: oneDNN {self.onednn} with {self.instruction_set}"
            head += f", {self.cores} core(s) shared by the devices"
        else:
            head = f"CPU kernels: XLA's own, in its fast layout ({self.why_not})"
        return "\n".join([head, *(f"  {kernel}: {n}" for kernel, n in self.lowered.items())])


def read(*, active: bool, why_not: str) -> Status:
    """Read the state; `why_not` says why it is not active."""
    lowered, cores = tally.counts(), threads.cores()
    if not active:
        return Status(False, False, why_not, cores=cores, lowered=lowered)
    try:
        kernels = library.load()
    except library.Unavailable as reason:
        return Status(True, False, str(reason), cores=cores, lowered=lowered)
    return Status(True, True, "", kernels.onednn_version, kernels.instruction_set, cores, lowered)
