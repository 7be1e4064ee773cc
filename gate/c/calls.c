// SPDX-License-Identifier: Apache-2.0
/*
 * The system calls of gates and of the gate pool. A gate that the pool has forked has both
 * filters.
 *
 * A gate reads the memory of programs and takes their descriptors. It opens no file, connects to
 * nothing and writes to no file unless IPv4 is translated, starts no program, and signals
 * only its own threads. Its other calls on descriptors are those that it makes anyway.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../native/privilege/privilege.h"

/* Calls of both. arm64 has only the newer calls. */
#ifdef SYS_stat
#define CALLS_OF_BOTH_OLD {.number = SYS_stat}, {.number = SYS_access},
#else
#define CALLS_OF_BOTH_OLD
#endif
/* clang-format off */
#define CALLS_OF_BOTH \
	CALLS_OF_BOTH_OLD \
	{.number = SYS_newfstatat}, {.number = SYS_faccessat}, \
	{.number = SYS_ioctl}, {.number = SYS_pread64}, {.number = SYS_eventfd2}, \
	{.number = SYS_socket}, {.number = SYS_getsockname}, {.number = SYS_getsockopt}, \
	{.number = SYS_setsockopt}, {.number = SYS_accept4}, {.number = SYS_sendmsg}, \
	{.number = SYS_sendto}, {.number = SYS_recvmsg}, {.number = SYS_recvfrom}, \
	{.number = SYS_process_vm_readv}, {.number = SYS_pidfd_open}, \
	{.number = SYS_pidfd_getfd}, {.number = SYS_clone}, \
	{.number = SYS_sched_setscheduler, .first = 0, .checked = 1}
/* clang-format on */

void gate_confine(bool translates)
{
	const struct privilege_call may[] = {
		CALLS_OF_BOTH,
		{.number = SYS_tgkill, .first = (uint32_t)getpid(), .checked = 1},
		/* The last three, of gates that translate. Files that a gate can write to are
		 * programs' memory, and cgroup.kill. */
		{.number = SYS_connect},
		{.number = SYS_pwrite64},
		{.number = SYS_getpeername},
	};

	privilege_confine(may, sizeof(may) / sizeof(*may) - (translates ? 0 : 3));
}

void gatepool_confine(void)
{
	const struct privilege_call may[] = {
		CALLS_OF_BOTH,
		{.number = SYS_tgkill},	 /* the processes of gates are several */
		{.number = SYS_connect}, /* this and the next two, of gates that translate */
		{.number = SYS_pwrite64},
		{.number = SYS_getpeername},
#ifdef SYS_epoll_wait
		{.number = SYS_epoll_wait},
#endif
		{.number = SYS_epoll_pwait},
		{.number = SYS_epoll_ctl},
		{.number = SYS_epoll_create1},
		{.number = SYS_socketpair},
		{.number = SYS_listen},
		{.number = SYS_memfd_create},
		{.number = SYS_ftruncate},
		{.number = SYS_prlimit64, .first = 0, .checked = 1},
		{.number = SYS_clone3},
		/* How a process becomes a gate. */
		{.number = SYS_prctl},
		{.number = SYS_setfsuid},
		{.number = SYS_setfsgid},
		{.number = SYS_capget},
		{.number = SYS_capset},
		{.number = SYS_seccomp},
	};

	privilege_confine(may, sizeof(may) / sizeof(*may));
}
