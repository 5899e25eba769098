"""Implementation of `pipelining_ops.pipeline`: functions as the stages of a Keras model."""
