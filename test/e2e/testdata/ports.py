"""Binds what it is told to, and answers whoever comes there with its own name.

Reads a line for each, and prints "ok" and the port, or the name of the error:

    bind NAME tcp|udp ADDR PORT FLAGS    FLAGS are of reuseport, reuseaddr, v6only, quiet
    listen NAME                          for one that is quiet
    close NAME

A TCP socket listens, unless it is quiet.
"""
import errno
import selectors
import socket
import sys

OPTIONS = {
    "reuseport": (socket.SOL_SOCKET, socket.SO_REUSEPORT),
    "reuseaddr": (socket.SOL_SOCKET, socket.SO_REUSEADDR),
    "v6only": (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
}
me = sys.argv[1].encode() + b"\n"
named = {}
ready = selectors.DefaultSelector()


def bind(name, network, addr, port, *flags):
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM if network == "tcp" else socket.SOCK_DGRAM)
    named[name] = s
    for flag in flags:
        if flag in OPTIONS and (flag != "v6only" or family == socket.AF_INET6):
            s.setsockopt(*OPTIONS[flag], 1)
    s.bind((addr, int(port)))
    if network == "tcp" and "quiet" not in flags:
        listen(name)
    elif network == "udp":
        ready.register(s, selectors.EVENT_READ, answer)
    return s.getsockname()[1]


def listen(name):
    named[name].listen(64)
    ready.register(named[name], selectors.EVENT_READ, accept)
    return 0


def close(name):
    s = named.pop(name)
    if s in ready.get_map():
        ready.unregister(s)
    s.close()
    return 0


def accept(s):
    connection, _ = s.accept()
    connection.sendall(me)
    connection.close()


def answer(s):
    s.sendto(me, s.recvfrom(64)[1])


def obey(stdin):
    line = stdin.readline()
    if not line:
        sys.exit()
    verb, *args = line.split()
    try:
        print("ok", {"bind": bind, "listen": listen, "close": close}[verb](*args), flush=True)
    except OSError as e:
        named.pop(args[0]).close()
        print(errno.errorcode.get(e.errno, e), flush=True)


ready.register(sys.stdin, selectors.EVENT_READ, obey)
print("ready", flush=True)
while True:
    for key, _ in ready.select():
        if key.fileobj in ready.get_map():
            key.data(key.fileobj)
