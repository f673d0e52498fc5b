"""Benchmarks of Delayline's speed and cost. See `python -m benchmarks --help`, and README.md in this folder.

Each benchmark is one module with `measure`, `aims_of` (computes its aims from the figures) and `draw`. It runs on a
`stand`: a separate broker and separate jobs, with default settings. The service does not import this package.
Read `lateness` first, then `traffic` (a load through a job), `outcome` (figures, aims, verdict) and `usage` (the cost).
"""
