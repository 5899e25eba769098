"""Errors that Graphcore's software has and Python has not."""


class FailedPreconditionError(RuntimeError):
    """A program was asked for whose numbers do not fit together."""
