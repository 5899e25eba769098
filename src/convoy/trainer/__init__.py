"""Keras's trainer on the engine: the methods that a prepared model runs in place of Keras's own.

engine_model.py   a model with its configuration, its compiled programs and its strategy
methods.py        fit, evaluate, predict and their relatives, with Keras's signatures
options.py        options and stages of one model: accumulation, callbacks, pipeline
routing.py        the choice between the engine and stock Keras
"""
