"""Convoy beside its peers: the same training work, turn by turn, on the same machine.

`workloads.py` says what is trained and `peers.py` by whom; `environments.py` builds what they need;
`run.py` lets them take turns; `report.py` writes the page. Start with `make bench-peers`.
"""
