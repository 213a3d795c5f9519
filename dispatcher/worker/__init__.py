"""A worker process: its loop, posts in flight, what RQ sees of it, signals, and the supervisor of several.

May import: store, core, server, errors.
"""
