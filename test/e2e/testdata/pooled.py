# Makes calls of IPv4 clients on sockets that the preloaded library has in advance: a process gets
# such sockets once it has made some. What it prints is what it prints with IPv4, but for "by".
import ctypes, errno, os, select, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
TCP = socket.SOCK_STREAM
SYS = {"connect": 42, "getsockname": 51, "getpeername": 52}
if os.uname().machine == "aarch64":
    SYS = {"connect": 203, "getsockname": 204, "getpeername": 205}


def new():
    return socket.socket(socket.AF_INET, TCP)


def name(n):
    return errno.errorcode.get(n, n)


def connect(s, to):
    return name(s.connect_ex(to))


def is_ip6(s):
    """Says what a new socket is: an IPv4 one has no such option."""
    try:
        return s.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) in (0, 1)
    except OSError:
        return False


def inode(s):
    return os.fstat(s.fileno()).st_ino


def peer(s):
    try:
        return s.getpeername()
    except OSError as e:
        return name(e.errno)


def raw(to):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", to[1]) + socket.inet_aton(to[0]) + bytes(8)


def system(call, *args):
    return name(ctypes.get_errno()) if libc.syscall(SYS[call], *args) else 0


def told(function, s, room):
    """Returns what a call for a name writes, with its length, beside what it leaves alone."""
    at, size = ctypes.create_string_buffer(b"\xee" * 32, 32), ctypes.c_uint32(room)
    if function(s.fileno(), at, ctypes.byref(size)):
        return name(ctypes.get_errno())
    written = min(room, size.value)
    return at.raw[:written], size.value, at.raw[written:] == b"\xee" * (32 - written)


def told_right(function, s, to):
    return [told(function, s, room) == (raw(to)[:room], 16, True) for room in (0, 1, 2, 8, 15, 16, 28, 32)]


addr = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, TCP)[0][4]
closed, nobody = (addr[0], 1), ("198.18.77.1", addr[1])
for _ in range(8):
    new().close()

s = new()
print("new", s.getsockname(), s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET)
before = inode(s)
print("translated", is_ip6(s), connect(s, addr), inode(s) == before)
print("names", s.getsockname()[0], peer(s) == addr)
print("own", all(told_right(libc.getsockname, s, s.getsockname())), "peer", all(told_right(libc.getpeername, s, addr)))
print("system calls", all(told_right(lambda *args: libc.syscall(SYS["getsockname"], *args), s, s.getsockname())),
      all(told_right(lambda *args: libc.syscall(SYS["getpeername"], *args), s, addr)))
print("bad pointers", *[name(ctypes.get_errno()) if f(s.fileno(), a, n) else 0
      for f in (libc.getsockname, libc.getpeername) for a, n in ((ctypes.c_void_p(1), ctypes.byref(ctypes.c_uint32(16))), (b"1" * 32, ctypes.c_void_p(1)))])
s.sendall(b"GET / HTTP/1.0\r\n\r\n")
print("answer", s.makefile().read().split()[-1])

s = new()
print("refused", connect(s, closed), connect(s, closed), connect(s, nobody), connect(s, addr), connect(s, addr), peer(s) == addr)
s = new()
print("nobody", connect(s, nobody), connect(s, ("192.0.0.7", 80)), connect(s, addr))

s = new()
s.setblocking(False)
events = select.epoll()
events.register(s, select.EPOLLOUT)
print("begun", connect(s, closed))
select.select([], [s], [])
print("failed", name(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
print("peer", peer(s))
s = new()
s.setblocking(False)
events.register(s, select.EPOLLOUT)
print("begun", connect(s, addr))
while (s.fileno(), select.EPOLLOUT) not in events.poll():
    pass
print("ready", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), connect(s, addr), connect(s, addr), peer(s) == addr)

s = new()
d = s.dup()
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 16)
if os.fork() == 0:
    print("child", connect(s, addr), peer(s) == addr, flush=True)
    os._exit(0)
os.wait()
print("parent", connect(d, addr), d.getpeername() == peer(s) == addr)
print("options", s.getsockopt(socket.IPPROTO_IP, socket.IP_TTL), s.getsockopt(socket.IPPROTO_IP, socket.IP_TOS),
      s.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS), s.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS))

# System calls that the library does not see, as a static program makes them after execve(2).
l = new()
l.bind(("127.0.0.1", 0))
l.listen()
for to in addr, l.getsockname(), ("127.0.0.1", 1), nobody:
    s = new()
    print("system call", system("connect", s.fileno(), raw(to), 16), connect(s, addr))
s = new()
print("system call", system("connect", s.fileno(), raw(closed), 16), system("connect", s.fileno(), raw(l.getsockname()), 16), peer(s) == l.getsockname())

# The container's loopback.
while l.accept()[0].getpeername() != s.getsockname():
    pass
s = new()
print("loopback", connect(s, l.getsockname()), s.getsockname()[0], peer(s) == l.getsockname())
c, client = l.accept()
print("accepted", client == s.getsockname() == c.getpeername(), c.getsockname() == s.getpeername())
s = new()
print("loopback", connect(s, ("127.0.0.1", 1)), connect(s, addr), peer(s) == addr)
s = new()
print("loopback", connect(s, closed), connect(s, l.getsockname()), peer(s) == l.getsockname())
s = new()
s.listen()
d = new()
print("unbound", s.getsockname()[0], connect(d, ("127.0.0.1", s.getsockname()[1])), s.accept()[1] == d.getsockname())
right = []
for room in (0, 1, 2, 4, 8, 15, 16, 27, 28, 32):
    d = new()
    d.connect(("127.0.0.1", s.getsockname()[1]))
    at, size = ctypes.create_string_buffer(32), ctypes.c_uint32(room)
    c = socket.socket(fileno=libc.accept(s.fileno(), at, ctypes.byref(size)))
    right.append(at.raw[:min(room, 16)] == raw(d.getsockname())[:room] and size.value == 16 and c.getpeername() == d.getsockname())
s.setblocking(False)
print("accept", all(right), libc.accept(s.fileno(), None, None), name(ctypes.get_errno()))
s = new()
s.bind(("0.0.0.0", 0))
print("bound", s.getsockname()[0], connect(s, addr), s.getsockname()[0], peer(s) == addr)
s = new()
s.bind(("127.0.0.1", 0))
print("bound", s.getsockname()[0], connect(s, l.getsockname()))

# An IPv6 socket takes no IPv4 address.
for to in addr, nobody, closed, l.getsockname(), ("127.0.0.1", 1), ("0.0.0.0", 1), ("192.0.2.53", 53):
    s = socket.socket(socket.AF_INET6, TCP)
    print("IPv6", *[name(ctypes.get_errno()) if libc.connect(s.fileno(), raw(to).ljust(size), size) else 0 for size in (16, 28)])

# The resolver that is asked is the container's, whatever its address.
s = new()
print("resolver", connect(s, ("192.0.2.53", 53)), s.getpeername())
query = bytes.fromhex("123401000001000000000000") + b"".join(bytes([len(w)]) + w.encode() for w in sys.argv[1].split(".")) + bytes([0, 0, 1, 0, 1])
s.sendall(struct.pack("!H", len(query)) + query)
answer = s.recv(2, socket.MSG_WAITALL)
answer = s.recv(struct.unpack("!H", answer)[0], socket.MSG_WAITALL)
print("resolver", answer[:2] == query[:2], socket.inet_aton(addr[0]) in answer)
