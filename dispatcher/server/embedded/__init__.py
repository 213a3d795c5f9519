"""The embedded server: a real Valkey or Redis that the processes of one machine share, nothing to set up.

It lives in a data directory, listens on a unix socket only, and ends by itself after its last client.
"""

from dispatcher.server.embedded.binary import ServerBinary, find_server
from dispatcher.server.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "ServerBinary", "find_server"]
