"""`convoy launch`: one run in several processes, on one host or many."""
