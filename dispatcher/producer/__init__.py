"""The producers' side: one call hands an event over.

from dispatcher import Producer

producer = Producer.from_env()
producer.send("errors", "disk full on db1", channel="#ops")

Loads nothing before its first use, and neither Redis nor the settings before the first producer is made.

May import: store, settings, core, server, errors, jsonio.
"""
