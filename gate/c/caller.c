// SPDX-License-Identifier: Apache-2.0
/*
 * Memory and descriptors of callers. The gate knows a caller by its thread id, so data that it has
 * read counts only if gate_valid says afterwards that the caller still waits.
 */
#define _GNU_SOURCE
#include "caller.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gate.h"

/* PIDFD_THREAD of linux/pidfd.h (6.9): O_EXCL. */
#define GATE_PIDFD_THREAD 0200

bool gate_valid_id(uint64_t id)
{
	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

bool gate_valid(const struct seccomp_notif *n)
{
	return gate_valid_id(n->id);
}

size_t gate_read(const struct seccomp_notif *n, uint64_t from, void *to, size_t size)
{
	struct iovec local = {to, size}, remote = {(void *)(uintptr_t)from, size};
	ssize_t got = process_vm_readv((pid_t)n->pid, &local, 1, &remote, 1, 0);

	return got < 0 ? 0 : (size_t)got;
}

int gate_file_of(struct gate_worker *w, int number)
{
	int file = -1;

	for (int tries = 0; tries < 2 && file < 0; tries++) {
		if (w->pidfd < 0 || w->thread != w->n.pid) {
			if (w->pidfd >= 0)
				close(w->pidfd);
			w->thread = w->n.pid;
			w->pidfd = (int)syscall(SYS_pidfd_open, w->n.pid, GATE_PIDFD_THREAD);
			if (w->pidfd < 0 &&
			    errno == EINVAL) /* before 6.9: only for a process's first thread */
				w->pidfd = (int)syscall(SYS_pidfd_open, w->n.pid, 0);
		}
		if (w->pidfd < 0)
			return -1;
		file = (int)syscall(SYS_pidfd_getfd, w->pidfd, number, 0);
		if (file < 0 && errno != ESRCH)
			return -1;
		if (file < 0)
			w->thread = 0; /* the thread with this id has ended */
	}
	return file;
}

/* Whether an IP socket has a port. */
static bool gate_is_bound(int file)
{
	struct sockaddr_in6 name = {0}; /* the port is at the same offset for AF_INET */
	socklen_t length = sizeof(name);

	return getsockname(file, (struct sockaddr *)&name, &length) != 0 || name.sin6_port != 0;
}

bool gate_is_ip6(struct gate_worker *w, int number)
{
	struct sockaddr_in6 name = {0};
	socklen_t length = sizeof(name);
	int file = gate_file_of(w, number);
	bool is;

	if (file < 0)
		return false;
	is = getsockname(file, (struct sockaddr *)&name, &length) == 0 &&
	     name.sin6_family == AF_INET6;
	close(file);
	return is;
}

uint64_t gate_netns_of(struct gate_worker *w, int number, bool *bound)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);
	int file = gate_file_of(w, number);

	if (file < 0)
		return 0;
	if (getsockopt(file, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) != 0)
		cookie = 0;
	else if (bound != NULL)
		*bound = gate_is_bound(file);
	close(file);
	return cookie;
}
