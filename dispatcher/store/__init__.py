"""The core's ports on Redis: intake, leases, admission, pre-check, dead letters, parked events, versions, snapshot.

May import: limiter, core, server, errors, jsonio.
"""
