"""`python -m convoy`: the same as the command `convoy`."""

import sys

from convoy_command import convoy

sys.exit(convoy())
