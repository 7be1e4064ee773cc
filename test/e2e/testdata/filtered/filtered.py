"""Does what a program does that an engine has executed in a container: puts itself under
a seccomp filter with a listener, hands that to the agent, and makes calls.

filtered.py SOCKET TOKEN ADDR PORT [later]: prints what the agent answers, and then connects
as many UDP sockets as each line of standard input says. With "later", it prints "connected",
and reads a line before it hands anything over.
"""
import array
import ctypes
import json
import os
import platform
import socket
import struct
import sys

SECCOMP, SOCKET, CONNECT = {"x86_64": (317, 41, 42), "aarch64": (277, 198, 203)}[platform.machine()]
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, FLAG_NEW_LISTENER = 1, 8
RET_ALLOW, RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06

libc = ctypes.CDLL(None, use_errno=True)


def put_under_filter():
    code = [(LOAD, 0, 0, 0), (JUMP_EQUAL, 1, 0, SOCKET), (JUMP_EQUAL, 0, 1, CONNECT),
            (RETURN, 0, 0, RET_USER_NOTIF), (RETURN, 0, 0, RET_ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = libc.syscall(SECCOMP, SET_MODE_FILTER, FLAG_NEW_LISTENER, header)
    if listener < 0:
        sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
    return listener


path, token, addr, port, *later = sys.argv[1:]
agent = socket.socket(socket.AF_UNIX)
agent.connect(path)
if later:
    print("connected", flush=True)
    sys.stdin.readline()
listener = put_under_filter()
state = {"ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": os.getpid(), "metadata": token,
         "state": {"ociVersion": "1.0.2", "id": "x", "status": "running", "bundle": "/"}}
agent.sendmsg([json.dumps(state).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
os.close(listener)
agent.shutdown(socket.SHUT_WR)
print(agent.makefile().read().strip(), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.connect((addr, int(port)))
        s.close()
    print("done", flush=True)
