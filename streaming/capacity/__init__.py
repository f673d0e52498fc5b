"""A model of the resources for a load: storage, metadata, rewrites, files, memory, processes.

Read `model`; `tests/streaming/capacity/test_measured.py` compares its figures with measured ones.
"""
