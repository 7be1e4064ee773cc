package guest

import "golang.org/x/sys/unix"

// archToken is what the kernel calls this architecture's calls.
const archToken = unix.AUDIT_ARCH_X86_64
