"""How fast Delayline is: lateness, ingest, burst, idle. `python -m benchmarks --help`, and README.md beside this.

Each benchmark is one file with `measure` and `draw`, run on a `stand`: a broker and jobs of its own, with the
settings that a deployment has by default. Nothing of the service imports this.
"""
