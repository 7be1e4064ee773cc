package shared

import (
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// reads and writes are the system calls whose first argument is the file that they work on. Work
// for a container begins with a read, and ends with a write.
var (
	reads = []int{
		unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PREADV2,
		unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
		unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_FADVISE64, unix.SYS_IOCTL, unix.SYS_GETDENTS64,
	}
	writes = []int{
		unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2, unix.SYS_VMSPLICE,
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,
	}
)

// waits are the system calls in which a thread waits and works for no container in particular.
var waits = append([]int{
	unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_PPOLL, unix.SYS_PSELECT6,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_SCHED_YIELD,
}, oldWaits...)

// callByNumber returns the table in which the kernel programs look up a system call.
func callByNumber(size uint64) []bpf.SharedCallKind {
	table := make([]bpf.SharedCallKind, size/4)
	set := func(kind bpf.SharedCallKind, calls ...int) {
		for _, n := range calls {
			table[n] = kind
		}
	}
	set(bpf.SharedCallKindCALL_READ, reads...)
	set(bpf.SharedCallKindCALL_WRITE, writes...)
	set(bpf.SharedCallKindCALL_WRITE_2, unix.SYS_TEE, unix.SYS_SENDFILE)
	set(bpf.SharedCallKindCALL_WRITE_3, unix.SYS_SPLICE, unix.SYS_COPY_FILE_RANGE)
	set(bpf.SharedCallKindCALL_WAIT, waits...)
	return table
}
