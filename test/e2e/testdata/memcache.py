"""Stores a large value in a memcached and reads it back, over TCP and UDP.

    memcache.py ADDR PORT

It prints the addresses of TCP clients that the server lists.
"""

import socket
import sys

addr, port = sys.argv[1], int(sys.argv[2])
value = bytes(range(256)) * 3900  # just below a megabyte, the largest

with socket.create_connection((addr, port), timeout=60) as s:
    f = s.makefile("rwb")
    f.write(b"set large 0 0 %d\r\n%s\r\n" % (len(value), value))
    f.flush()
    assert f.readline() == b"STORED\r\n"
    f.write(b"get large\r\nset small 0 0 5\r\nhello\r\n")
    f.flush()
    assert f.readline() == b"VALUE large 0 %d\r\n" % len(value)
    assert f.read(len(value) + 7) == value + b"\r\nEND\r\n"
    assert f.readline() == b"STORED\r\n"
    f.write(b"stats conns\r\n")
    f.flush()
    for line in iter(f.readline, b"END\r\n"):
        words = line.decode().split()
        if words[1].endswith(":addr") and words[2].startswith("tcp:") and words[2].rpartition(":")[2] != str(port):
            print(words[2].split(":")[1])

for connected in (False, True):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(60)
        # A frame is: request, sequence, of how many, reserved.
        request = b"\x00\x07\x00\x00\x00\x01\x00\x00get small\r\n"
        if connected:
            s.connect((addr, port))
            s.send(request)
        else:
            s.sendto(request, (addr, port))
        answer, peer = s.recvfrom(2048)
        assert peer == (addr, port), peer
        assert answer[8:] == b"VALUE small 0 5\r\nhello\r\nEND\r\n", answer
