"""What a load takes: storage, metadata, rewrites, files, memory, processes. A model, held against measured figures.

Read `model`; `tests/streaming/capacity/test_measured.py` compares its figures with measured ones.
"""
