// SPDX-License-Identifier: Apache-2.0
/* Messages with files, of gates, the gate pool and supervisors. */
#define _GNU_SOURCE
#include "messages.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../shim/c/marks.h"

bool gate_send_files(int to, const void *bytes, size_t length, const int *files, unsigned int count,
		     int flags)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * MARK_BATCH_MAX)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)bytes, length};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;

	if (count > 0) {
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(cmsg), files, sizeof(int) * count);
	}
	return sendmsg(to, &msg, flags | MSG_NOSIGNAL) >= 0;
}

/* Takes the files of a message. Because of alignment, there may be one more than there is space
 * for. */
static void gate_take_files(const struct msghdr *msg, struct gate_message *m)
{
	const struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);
	size_t size = cmsg == NULL ? 0 : cmsg->cmsg_len - CMSG_LEN(0);

	m->count = 0;
	if (cmsg == NULL || cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
		return;
	for (size_t at = 0; at + sizeof(int) <= size; at += sizeof(int)) {
		int file;

		memcpy(&file, CMSG_DATA(cmsg) + at, sizeof(int));
		if (m->count < GATE_ADMISSION_FILES)
			m->files[m->count++] = file;
		else
			close(file);
	}
}

bool gate_receive(int from, struct gate_message *m, int flags)
{
	union {
		char space[CMSG_SPACE(sizeof(m->files))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {m->bytes, sizeof(m->bytes)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	ssize_t got = recvmsg(from, &msg, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0)
		return false;
	m->length = (size_t)got;
	m->cut = (msg.msg_flags & MSG_CTRUNC) != 0;
	gate_take_files(&msg, m);
	return true;
}

void gate_close_files(struct gate_message *m)
{
	while (m->count > 0)
		close(m->files[--m->count]);
}

bool gate_has(int file, short events)
{
	struct pollfd p = {.fd = file, .events = events};

	return poll(&p, 1, 0) > 0 && (p.revents & events) != 0;
}
