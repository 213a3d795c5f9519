"""The HTTP side: ``dispatcher serve``, one process without state of its own in front of Redis.

Needs the extra ``serve``.

May import: app, worker, producer, store, limiter, slack, settings, logs, core, server, errors, jsonio, data_files.
"""
