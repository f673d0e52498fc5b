"""How fast Delayline is, and what it costs. `python -m benchmarks --help`, and README.md beside this.

Each benchmark is one file with `measure`, `aims_of` (its aims, from the figures alone) and `draw`, run on a `stand`: a
broker and jobs of its own, with the settings that a deployment has by default. Nothing of the service imports this.
Read `lateness` first, then `traffic` (a load through a job), `outcome` (figures, aims, verdict) and `usage` (the cost).
"""
