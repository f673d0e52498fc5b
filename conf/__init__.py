"""What every other room may lean on: settings, rules, the shape of a message, errors.

Nothing here imports Spark or talks to Kafka, and nothing here imports another room.
"""
