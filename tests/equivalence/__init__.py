"""The promise of equal results: stock Keras and Convoy side by side."""
