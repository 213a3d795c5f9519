"""The event log: one line for each event at its end, written in a thread of its own.

May import: core, jsonio.
"""
