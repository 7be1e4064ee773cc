// SPDX-License-Identifier: Apache-2.0
/* How a gate answers a notification, or has the supervisor or the kernel do so. */
#include "answer.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include "gate.h"
#include "pending.h"
#include "stats.h"

/* From linux/seccomp.h, where it is too old. */
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND 2
#endif

static void gate_reply(struct gate_worker *w, int64_t value, uint32_t flags)
{
	struct seccomp_notif_resp r = {.id = w->n.id, .flags = flags};

	if (value < 0)
		r.error = (int32_t)value;
	else
		r.val = value;
	gate_count_answer(w, value < 0 ? GATE_BY_GATE_REFUSED : GATE_BY_GATE);
	/* ENOENT: the caller is gone, and nobody is left to be told. */
	(void)ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
}

void gate_answer(struct gate_worker *w, int64_t value)
{
	gate_reply(w, value, 0);
}

void gate_proceed(struct gate_worker *w)
{
	gate_reply(w, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

bool gate_deliver(struct gate_worker *w, int file, bool close_on_exec)
{
	struct seccomp_notif_addfd add = {
		.id = w->n.id,
		.flags = SECCOMP_ADDFD_FLAG_SEND,
		.srcfd = (uint32_t)file,
		.newfd_flags = close_on_exec ? SOCK_CLOEXEC : 0,
	};

	gate_count_answer(w, GATE_BY_GATE);
	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add) >= 0;
}

void gate_pass_if(struct gate_worker *w, bool passed)
{
	if (passed)
		gate_pass(w);
	else
		gate_proceed(w);
}
