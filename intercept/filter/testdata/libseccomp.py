# What libseccomp makes of a profile: reads those of an OCI runtime as JSON, a line
# each, and writes for each the length of its program and the program, as runc gives
# the rules to the library. One that the library does not take has the length 0.
import ctypes, errno, json, os, struct, sys, tempfile

lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
lib.seccomp_init.restype = ctypes.c_void_p
lib.seccomp_init.argtypes = [ctypes.c_uint32]
for name in ("arch_add", "arch_remove", "rule_add_array", "export_bpf", "release"):
    getattr(lib, "seccomp_" + name).argtypes = {
        "arch_add": [ctypes.c_void_p, ctypes.c_uint32],
        "arch_remove": [ctypes.c_void_p, ctypes.c_uint32],
        "rule_add_array": [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p],
        "export_bpf": [ctypes.c_void_p, ctypes.c_int],
        "release": [ctypes.c_void_p],
    }[name]

ARCHES = {"X86_64": b"x86_64", "X86": b"x86", "X32": b"x32", "AARCH64": b"aarch64", "ARM": b"arm"}
OPS = {"NE": 1, "LT": 2, "LE": 3, "EQ": 4, "GE": 5, "GT": 6, "MASKED_EQ": 7}
ACTIONS = {"KILL": 0, "KILL_THREAD": 0, "KILL_PROCESS": 0x80000000, "TRAP": 0x30000, "NOTIFY": 0x7FC00000,
           "LOG": 0x7FFC0000, "ALLOW": 0x7FFF0000}


class Cmp(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def action(name, number):
    name = name.removeprefix("SCMP_ACT_")
    return 0x50000 | (errno.EPERM if number is None else number) if name == "ERRNO" else ACTIONS[name]


def check(what, r):
    if r < 0:
        raise ValueError(f"{what}: {os.strerror(-r)}")


def program(profile):
    default = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    ctx = lib.seccomp_init(default)
    for a in profile.get("architectures") or []:
        r = lib.seccomp_arch_add(ctx, lib.seccomp_arch_resolve_name(ARCHES[a.removeprefix("SCMP_ARCH_")]))
        check(a, 0 if r == -errno.EEXIST else r)
    for s in profile.get("syscalls") or []:
        act = action(s["action"], s.get("errnoRet"))
        args = [Cmp(a["index"], OPS[a["op"].removeprefix("SCMP_CMP_")], a["value"], a.get("valueTwo", 0)) for a in s.get("args") or []]
        repeated = len({a.arg for a in args}) < len(args)
        for name in s["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number == -1 or act == default:
                continue
            for group in [[a] for a in args] if repeated else [args]:
                check(f"{name} {s}", lib.seccomp_rule_add_array(ctx, act, number, len(group), (Cmp * len(group))(*group)))
    with tempfile.TemporaryFile() as f:
        check("export", lib.seccomp_export_bpf(ctx, f.fileno()))
        f.seek(0)
        code = f.read()
    lib.seccomp_release(ctx)
    return code


for line in sys.stdin:
    try:
        code = program(json.loads(line))
    except ValueError as e:
        code = b""
        print(e, file=sys.stderr)
    sys.stdout.buffer.write(struct.pack("<I", len(code)) + code)
