// SPDX-License-Identifier: Apache-2.0
/*
 * getsockname(2) and getpeername(2) where IPv4 is translated.
 *
 * The kernel would tell the IPv6 name of a translated socket. So the gate asks the kernel, which
 * shows virtual addresses in their mapped form (bpf/names.h), and writes the IPv4 form where the
 * program wants the name. The supervisor answers for peers that have no virtual address yet, and
 * for callers whose memory the gate does not have. For all else, and where the program's pointers
 * are bad, the kernel carries on.
 *
 * Time of check. The file is duplicated once, and only the duplicate is asked. The length is read
 * once. The answer is written only into the caller's memory. If another thread puts a translated
 * socket under the number in the moment in which the kernel carries on, the program learns the IPv6
 * address of a peer that its rules let it reach, and nothing else.
 */
#define _GNU_SOURCE
#include "names.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "answer.h"
#include "caller.h"
#include "gate.h"
#include "pending.h"

static bool names_domain_is_4(int file)
{
	int domain = -1;
	socklen_t length = sizeof(domain);

	return getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_INET;
}

/* Reads the name of a translated socket, or of its peer. Returns false for any other socket, and
 * where the kernel has no name. */
static bool names_read(int file, bool peer, struct translated_in6 *name)
{
	socklen_t length = sizeof(*name);
	int error = peer ? getpeername(file, (struct sockaddr *)name, &length)
			 : getsockname(file, (struct sockaddr *)name, &length);

	return error == 0 && name->family == AF_INET6 && names_domain_is_4(file);
}

bool gate_file_is_translated(int file)
{
	struct translated_in6 name = {0};

	return names_read(file, false, &name);
}

bool gate_read_room(struct gate_worker *w, uint32_t *room)
{
	return gate_read(&w->n, w->n.data.args[2], room, sizeof(*room)) == sizeof(*room) &&
	       *room <= INT32_MAX;
}

bool gate_name_is_mapped(struct gate_worker *w, uint32_t room)
{
	struct translated_in name;
	uint32_t size = room < sizeof(name) ? room : sizeof(name);

	return gate_read(&w->n, w->n.data.args[1], &name, size) == size;
}

enum gate_written gate_write_name(struct gate_worker *w, uint32_t room,
				  const struct translated_in *name)
{
	const uint32_t length = sizeof(*name);
	enum gate_written written = GATE_WRITTEN;

	if (room > 0)
		written = gate_write(w, w->n.data.args[1], name, room < length ? room : length);
	if (written == GATE_WRITTEN && room != length)
		written = gate_write(w, w->n.data.args[2], &length, sizeof(length));
	return written;
}

static void names_pass(struct gate_worker *w)
{
	gate_ask_for_memory(w);
	gate_pass(w);
}

void gate_answer_name(struct gate_worker *w)
{
	bool peer = w->request.name == GATE_NAME_PEER, is;
	int file = gate_file_of(w, w->request.number);
	struct translated_in6 name = {0};
	struct translated_in to;
	uint32_t room;

	if (file < 0) {
		gate_pass_if(w, errno != EBADF);
		return;
	}
	is = names_read(file, peer, &name);
	close(file);
	if (!is || !gate_read_room(w, &room)) {
		gate_proceed(w);
		return;
	}
	if (!translated_to4(&name, peer, &to) || gate_memory_of(w) < 0) {
		names_pass(w);
		return;
	}
	if (!gate_valid(&w->n))
		return;
	switch (gate_write_name(w, room, &to)) {
	case GATE_WRITTEN:
		gate_answer(w, 0);
		return;
	case GATE_WRITTEN_FAULT:
		gate_answer(w, -EFAULT);
		return;
	default:
		names_pass(w);
	}
}
