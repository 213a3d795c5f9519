"""The command ``dispatcher`` or ``program`` of a shell, run by the process of ``forked`` that listens beside this file.

It is copied to where it is run, and imports nothing that takes long.
"""

import json
import os
import signal
import socket
import struct
import sys

told, tells = os.pipe()
order = {
    "name": os.path.basename(__file__),  # noqa: PTH119 - see above
    "arguments": sys.argv[1:],
    "env": dict(os.environ),
    "cwd": os.getcwd(),  # noqa: PTH109 - see above
    "session": False,
}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
    orders.connect(os.path.join(os.path.dirname(__file__), "orders"))  # noqa: PTH118, PTH120 - see above
    socket.send_fds(orders, [json.dumps(order).encode()], [0, 1, 2, tells])
os.close(tells)
(pid,) = struct.unpack("i", os.read(told, 4))
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
(code,) = struct.unpack("i", os.read(told, 4))
sys.exit(code if code >= 0 else 128 - code)
