"""Comparison of Convoy with its peers: the same training work, in turns, on the same machine.

`workloads.py` defines the networks and `peers.py` the frameworks; `environments.py` builds their
environments; `run.py` runs them in turns; `report.py` writes the page. Start with
`make bench-peers`.
"""
