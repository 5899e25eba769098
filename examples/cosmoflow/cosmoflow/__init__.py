"""CosmoFlow: training of 3-D convolutional networks that predict a few numbers from volumes."""

import convoy  # noqa: F401 - selects the backend of Keras, before any module imports Keras
