package shared

import "golang.org/x/sys/unix"

// oldWaits are system calls that newer architectures do not have.
var oldWaits = []int{unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_SELECT}
