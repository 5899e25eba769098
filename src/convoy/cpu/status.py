"""What `convoy.cpu.status()` answers."""

from dataclasses import dataclass, field

from convoy.cpu import tally


@dataclass(frozen=True)
class Status:
    """State of the CPU kernels in this process.

    Attributes:
        active: whether operations are lowered by Convoy's rules.
        native: whether oneDNN runs them, and not XLA in the layout it is fast at.
        why_not: why not active or not native, empty if both.
        onednn: version of oneDNN, empty without it.
        instruction_set: what oneDNN was held to, empty without it.
        threads: threads one device's operation may use.
        lowered: number of operations each kernel was chosen for.
    """

    active: bool
    native: bool = False
    why_not: str = ""
    onednn: str = ""
    instruction_set: str = ""
    threads: int = 0
    lowered: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.active:
            return f"CPU kernels: off ({self.why_not})"
        if self.native:
            head = f"CPU kernels: oneDNN {self.onednn} on {self.instruction_set}"
            head += f", {self.threads} thread(s) for each device"
        else:
            head = f"CPU kernels: XLA's own, in its fast layout ({self.why_not})"
        return "\n".join([head, *(f"  {kernel}: {n}" for kernel, n in self.lowered.items())])


def read(*, active: bool, why_not: str) -> Status:
    return Status(active=active, why_not=why_not or "no native library", lowered=tally.counts())
