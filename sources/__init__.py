"""Getting in: reading Kafka, the clock, and turning a record into a scheduled message.

It decides when and where a message goes, once, and holds nothing: what is waiting lives in `state`.
"""
