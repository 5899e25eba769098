"""One run in several processes: the place of this process, joining, and exchange of host values."""

from convoy.distributed.collectives import (
    any_of,
    arrays_from,
    arrays_from_first,
    check_same,
    from_all,
    from_first,
    gathered,
    totals,
    wait_for_all,
    who_has,
)
from convoy.distributed.membership import join
from convoy.distributed.process import address, count, index, is_first
