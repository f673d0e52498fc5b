"""What a load takes: storage, metadata, rewrites, files, memory, processes. A model, held against measured figures.

Read `model`; `docs/platform/capacity.md` compares its figures with measured ones.
"""
