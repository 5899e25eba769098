"""Keras's trainer on the engine: the methods that a prepared model runs in place of Keras's own.

engine_model.py   a model with its configuration, its compiled programs and its strategy
methods.py        fit, evaluate, predict and their relatives, with Keras's signatures
input.py          the data of a run
options.py        options of one model: gradient accumulation, callbacks, pipeline
stages.py         the pipeline stages of its layers
routing.py        the choice between the engine and stock Keras
"""
