package shared

import "golang.org/x/sys/unix"

// oldWaits are not in newer architectures.
var oldWaits = []int{unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_SELECT}
