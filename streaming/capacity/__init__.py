"""What a load takes: storage, metadata, rewrites, files, memory, processes. A model, held against measured figures.

Read `model`; `docs/capacity.md` says where its constants come from, and how its figures compare with measured ones.
"""
