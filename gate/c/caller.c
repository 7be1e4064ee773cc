// SPDX-License-Identifier: Apache-2.0
/*
 * Memory and descriptors of callers. The gate knows a caller by its thread id, so data that it has
 * read counts only if gate_valid says afterwards that the caller still waits.
 *
 * Writing. What was written cannot be discarded afterwards, so a thread id does not do for writing:
 * the caller may be killed, and its id another process's, before the kernel looks the id up. A file
 * of the caller's memory (/proc/TID/mem) is of its memory for good. The gate opens no file, so the
 * supervisor does: with a request, the gate asks for the file of its caller, and the file comes
 * with an order (GATE_ORDER_MEMORY). Until then the supervisor answers the calls that need it.
 *
 * A file is the caller's if it was opened for a request of the same thread. A request is of the
 * thread that the pidfd refers to if pidfd_getfd(2) reaches that thread while the request's caller
 * waits: two threads never have one id at a time. So each request with this id between the first
 * and the last that asked is of this thread. When a program executes another, the file is of
 * nobody's memory any more, and writing says so; or of a process's that has shared its memory with
 * the program (vfork(2)), which both could write to.
 */
#define _GNU_SOURCE
#include "caller.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
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

static void caller_forget(struct gate_caller *c)
{
	if (c->thread == 0)
		return;
	close(c->pidfd);
	if (c->memory >= 0)
		close(c->memory);
	c->thread = 0;
}

void gate_forget_callers(struct gate_worker *w)
{
	for (unsigned int i = 0; i < GATE_CALLERS; i++)
		caller_forget(&w->callers[i]);
}

/* The caller of the notification, or NULL. */
static struct gate_caller *caller_of(struct gate_worker *w)
{
	struct gate_caller *c;

	for (unsigned int i = 0; i < GATE_CALLERS; i++) {
		unsigned int at = (w->last + i) % GATE_CALLERS;

		if (w->callers[at].thread == w->n.pid) {
			w->last = at;
			return &w->callers[at];
		}
	}
	w->last = (w->last + 1) % GATE_CALLERS;
	c = &w->callers[w->last];
	caller_forget(c);
	*c = (struct gate_caller){.memory = -1};
	c->pidfd = (int)syscall(SYS_pidfd_open, w->n.pid, GATE_PIDFD_THREAD);
	if (c->pidfd < 0 && errno == EINVAL) /* before 6.9: only for a process's first thread */
		c->pidfd = (int)syscall(SYS_pidfd_open, w->n.pid, 0);
	if (c->pidfd < 0)
		return NULL;
	c->thread = w->n.pid;
	return c;
}

int gate_file_of(struct gate_worker *w, int number)
{
	for (int tries = 0; tries < 2; tries++) {
		struct gate_caller *c = caller_of(w);
		int file;

		if (c == NULL)
			return -1;
		file = (int)syscall(SYS_pidfd_getfd, c->pidfd, number, 0);
		if (file >= 0 || errno != ESRCH)
			return file;
		caller_forget(c); /* the thread with this id has ended */
	}
	return -1;
}

/* Files of memory that have come, until a serving thread takes them. */
static struct caller_memory {
	uint64_t id; /* of the request */
	uint32_t thread;
	int file;
} caller_memories[GATE_CALLERS];
static unsigned int caller_memories_hand;
static pthread_mutex_t caller_memories_lock = PTHREAD_MUTEX_INITIALIZER;

void gate_memory_came(uint64_t id, uint32_t thread, int file)
{
	struct caller_memory *m;

	pthread_mutex_lock(&caller_memories_lock);
	m = &caller_memories[caller_memories_hand++ % GATE_CALLERS];
	if (m->thread != 0)
		close(m->file);
	*m = (struct caller_memory){id, thread, file};
	pthread_mutex_unlock(&caller_memories_lock);
}

static void caller_take_memory(struct gate_caller *c)
{
	pthread_mutex_lock(&caller_memories_lock);
	for (unsigned int i = 0; i < GATE_CALLERS && c->memory < 0; i++) {
		struct caller_memory *m = &caller_memories[i];

		if (m->thread != c->thread ||
		    m->id - c->first_asked > c->last_asked - c->first_asked)
			continue;
		c->memory = m->file;
		m->thread = 0;
	}
	pthread_mutex_unlock(&caller_memories_lock);
}

int gate_memory_of(struct gate_worker *w)
{
	struct gate_caller *c = caller_of(w);

	if (c == NULL)
		return -1;
	if (c->memory < 0 && c->first_asked != 0)
		caller_take_memory(c);
	return c->memory;
}

void gate_ask_for_memory(struct gate_worker *w)
{
	struct gate_caller *c = caller_of(w);

	if (c == NULL || c->memory >= 0)
		return;
	w->request.wants_memory = 1;
	c->last_asked = w->n.id;
	if (c->first_asked == 0)
		c->first_asked = w->n.id;
}

enum gate_written gate_write(struct gate_worker *w, uint64_t to, const void *from, size_t size)
{
	struct gate_caller *c = caller_of(w);
	ssize_t put;

	if (c == NULL || c->memory < 0)
		return GATE_WRITTEN_NOWHERE;
	put = pwrite(c->memory, from, size, (off_t)to);
	if (put == (ssize_t)size)
		return GATE_WRITTEN;
	if (put != 0)
		return GATE_WRITTEN_FAULT;
	close(c->memory); /* the caller has executed another program since */
	c->memory = -1;
	c->first_asked = 0;
	return GATE_WRITTEN_NOWHERE;
}

void gate_note_lost(struct gate_worker *w)
{
	struct gate_caller *c = caller_of(w);

	if (c == NULL)
		return;
	c->lost = true;
	c->lost_call = w->n.data;
}

bool gate_was_lost(struct gate_worker *w)
{
	struct gate_caller *c = caller_of(w);
	bool was = c != NULL && c->lost &&
		   memcmp(&c->lost_call, &w->n.data, sizeof(c->lost_call)) == 0;

	if (c != NULL)
		c->lost = false;
	return was;
}

/* Whether an IP socket has a port. */
static bool gate_is_bound(int file)
{
	struct sockaddr_in6 name = {0}; /* the port is at the same offset for AF_INET */
	socklen_t length = sizeof(name);

	return getsockname(file, (struct sockaddr *)&name, &length) != 0 || name.sin6_port != 0;
}

bool gate_may_be_ip6(struct gate_worker *w, int number)
{
	struct sockaddr_in6 name = {0};
	socklen_t length = sizeof(name);
	int file = gate_file_of(w, number);
	bool is;

	if (file < 0)
		return errno != EBADF;
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
