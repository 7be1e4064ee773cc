"""Processes wait in accept(2) on one listener, which their parent has made. Each connection is told
its peer's name, as accept(2) has it, and as getpeername(2) has it. Arguments: the port, and how many
processes there are."""
import os
import signal
import socket
import sys

listener = socket.create_server(("", int(sys.argv[1])), backlog=1000)
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        while True:
            conn, peer = listener.accept()
            with conn:
                conn.sendall(("%s %s\n" % (peer[0], conn.getpeername()[0])).encode())
signal.sigwait([signal.SIGTERM])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
