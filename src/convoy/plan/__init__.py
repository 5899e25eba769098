"""Search for the fastest parallel configuration of a model (`convoy plan`)."""
