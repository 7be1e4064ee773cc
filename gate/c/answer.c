// SPDX-License-Identifier: Apache-2.0
/* How a gate answers a notification, or has the supervisor or the kernel do so. */
#include "answer.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "caller.h"
#include "gate.h"
#include "pending.h"
#include "stats.h"

/* From linux/seccomp.h, which may be too old. */
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND 2
#endif

static bool gate_reply(struct gate_worker *w, int64_t value, uint32_t flags)
{
	struct seccomp_notif_resp r = {.id = w->n.id, .flags = flags};

	if (value < 0)
		r.error = (int32_t)value;
	else
		r.val = value;
	gate_count_answer(w, value < 0 ? GATE_BY_GATE_REFUSED : GATE_BY_GATE);
	/* ENOENT: the caller has gone, and nobody waits for an answer. */
	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SEND, &r) == 0;
}

bool gate_answer(struct gate_worker *w, int64_t value)
{
	return gate_reply(w, value, 0);
}

void gate_proceed(struct gate_worker *w)
{
	(void)gate_reply(w, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

static int gate_install(struct gate_worker *w, int file, bool close_on_exec, uint32_t flags)
{
	struct seccomp_notif_addfd add = {
		.id = w->n.id,
		.flags = flags,
		.srcfd = (uint32_t)file,
		.newfd_flags = close_on_exec ? SOCK_CLOEXEC : 0,
	};

	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
}

int gate_add(struct gate_worker *w, int file, bool close_on_exec)
{
	return gate_install(w, file, close_on_exec, 0);
}

bool gate_deliver(struct gate_worker *w, int file, bool close_on_exec)
{
	gate_count_answer(w, GATE_BY_GATE);
	return gate_install(w, file, close_on_exec, SECCOMP_ADDFD_FLAG_SEND) >= 0;
}

bool gate_deliver_socket(struct gate_worker *w, int file, bool close_on_exec)
{
	bool delivered;
	int error;

	atomic_store(&w->delivers, w->n.id);
	delivered = gate_deliver(w, file, close_on_exec);
	error = errno;
	close(file);
	atomic_store(&w->delivers, 0);
	errno = error;
	return delivered;
}

/*
 * The program goes on before the thread that has delivered a socket closes its own descriptor. If
 * the program closes the socket in the meantime, the descriptor keeps the socket's port:
 * another bind(2) would fail with EADDRINUSE, and a connect(2), which is not trapped where the
 * loopback is on the host, would find a listener that is closed. So bind(2) waits for such a
 * thread, also if the kernel is to choose the port. The thread needs the CPU and nothing else: its
 * notification is answered or given up, so the program cannot make it wait.
 */
void gate_await_deliveries(void)
{
	const struct timespec pause = {.tv_nsec = 100000};

	for (struct gate_worker *w = gate_workers; w < &gate_workers[GATE_THREADS_MAX]; w++) {
		uint64_t id = atomic_load(&w->delivers);

		while (id != 0 && atomic_load(&w->delivers) == id && !gate_valid_id(id))
			nanosleep(&pause, NULL);
	}
}

void gate_pass_if(struct gate_worker *w, bool passed)
{
	if (passed)
		gate_pass(w);
	else
		gate_proceed(w);
}
