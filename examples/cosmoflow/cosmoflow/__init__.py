"""Networks that read numbers off volumes: the application behind `examples/cosmoflow`."""
