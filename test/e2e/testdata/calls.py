"""Makes calls that somebody has to answer, one after another, until it is told to
end, and prints how many were made and which went otherwise than they have to."""
import collections
import errno
import os
import select
import signal
import socket
import sys
import threading
import time

remote, tcp, udp, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ending = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ending.set())
made, wrong = collections.Counter(), []
longest = collections.Counter()


def talk(s):
    s.sendall(b"hello")
    assert s.recv(5) == b"hello"


def connect():
    with socket.socket() as s:
        s.settimeout(60)
        s.connect((remote, tcp))
        talk(s)


def wait():
    """Registered before it connects, as servers do with their upstreams."""
    with socket.socket() as s, select.epoll() as e:
        s.setblocking(False)
        e.register(s, select.EPOLLOUT | select.EPOLLET)
        while e.poll(0):
            pass
        error = s.connect_ex((remote, tcp))
        assert error == errno.EINPROGRESS, errno.errorcode[error]
        while not any(event & select.EPOLLOUT for _, event in e.poll(60)):
            pass
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        s.setblocking(True)
        talk(s)


def bind(s, port):
    """Whoever is killed may leave a child that is about to be another program, and that
    has a port for that long which was closed here."""
    for patience in range(100):
        try:
            return s.bind(("0.0.0.0", port))
        except OSError as e:
            if e.errno != errno.EADDRINUSE or patience == 99:
                raise
        made["port was in use"] += 1
        time.sleep(0.02)


def listen():
    port = first + made["listen"] % 8
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind(s, port)
        assert s.getsockname() == ("0.0.0.0", port), s.getsockname()
        try:
            s.bind(("0.0.0.0", port))
            raise AssertionError("a second bind succeeded")
        except OSError as e:
            assert e.errno == errno.EINVAL, e
        s.listen(5)


def loopback():
    with socket.socket() as s, socket.socket() as c:
        s.bind(("127.0.0.1", 0))
        s.listen(5)
        c.connect(s.getsockname())
        with s.accept()[0] as a:
            talk_pair(c, a)


def talk_pair(a, b):
    a.sendall(b"hello")
    assert b.recv(5) == b"hello"


def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(60)
        s.sendto(b"hello", (remote, udp))
        assert s.recv(5) == b"hello"


def again(call):
    while not ending.is_set():
        begun = time.monotonic()
        try:
            call()
        except Exception as e:
            wrong.append(f"{call.__name__}: {e!r}")
        made[call.__name__] += 1
        longest[call.__name__] = max(longest[call.__name__], round(1000 * (time.monotonic() - begun)))


threads = [threading.Thread(target=again, args=[call]) for call in (connect, wait, listen, loopback, datagram)]
for t in threads:
    t.start()
print("begun", flush=True)
for t in threads:
    t.join()
print("made", dict(made))
print("longest in ms", dict(longest))
print("wrong", len(wrong), *wrong[:20], sep="\n")
sys.stdout.flush()
os._exit(1 if wrong else 0)
