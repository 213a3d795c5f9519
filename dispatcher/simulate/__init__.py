"""``dispatcher simulate``: recorded events through the real scripts and the real core, on made-up time.

It runs on a server of its own.

May import: stand_in, store, settings, core, server, errors, jsonio.
"""
