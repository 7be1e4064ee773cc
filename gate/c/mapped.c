// SPDX-License-Identifier: Apache-2.0
/*
 * Connects of translated sockets.
 *
 * Where IPv4 is translated, a program's TCP sockets are IPv6 ones from the beginning
 * (bpf/translated.h). The kernel takes no IPv4 address for them, so the gate begins to connect,
 * to the mapped form of the address, and without waiting. The kernel programs lead a virtual
 * address to its IPv6 host, and judge the rules. Then the kernel carries on with the program's
 * call: on a socket that is connecting, connect(2) waits and does not look at the address. So
 * blocking, signals and errnos are the kernel's.
 *
 * The program shares the file's flags with the gate. While the gate begins, a blocking socket has
 * O_NONBLOCK: the socket is not connected, so nothing else that a program can wait for is there.
 *
 * Where signals interrupt a call that waits for its answer (no WAIT_KILLABLE_RECV), the kernel may
 * start a call again that the gate has begun. If the gate's own answer was lost so, the gate notes
 * the call, and gives the answer when the call comes again.
 */
#define _GNU_SOURCE
#include "mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../policy/c/translated.h"
#include "../../shim/c/marks.h"
#include "answer.h"
#include "caller.h"
#include "gate.h"

/* Begins to connect a socket. Returns 0 or an errno. */
static int mapped_begin(int file, int flags, const struct translated_in6 *to)
{
	bool waits = !(flags & O_NONBLOCK);
	int error;

	if (waits && fcntl(file, F_SETFL, flags | O_NONBLOCK) != 0)
		return errno;
	error = connect(file, (const struct sockaddr *)to, sizeof(*to)) == 0 ? 0 : errno;
	if (waits)
		(void)fcntl(file, F_SETFL, flags);
	return error;
}

static int mapped_option(int file, int option)
{
	int value = -1;
	socklen_t length = sizeof(value);

	return getsockopt(file, SOL_SOCKET, option, &value, &length) == 0 ? value : -1;
}

/* Whether a socket is an IPv6 one of the program's own. */
static bool mapped_is_ip6(int file)
{
	return mapped_option(file, SO_DOMAIN) == AF_INET6;
}

/*
 * Whether a socket may be a translated one. A UDP socket, which is none, would get a port. An IPv6
 * socket of the program's own reaches no virtual address (ENETUNREACH), so that only for others its
 * domain is asked at once.
 */
static bool mapped_may_be_translated(int file, const struct translated_in *to)
{
	return mapped_option(file, SO_PROTOCOL) == IPPROTO_TCP &&
	       !(translated_is_near(to) && mapped_is_ip6(file));
}

/*
 * What the beginning of a call says, as an errno. If a signal took the answer of the call, the
 * kernel starts the call again. Then ERROR is about the first beginning, of which the program knows
 * nothing.
 */
static int mapped_error(struct gate_worker *w, int error)
{
	if (!gate_was_lost(w))
		return error;
	if (error == EALREADY)
		return EINPROGRESS;
	return error == EISCONN ? 0 : error;
}

/* Answers the call by what the beginning has given. Returns false if the supervisor has to
 * answer. */
static bool mapped_answer(struct gate_worker *w, int error, bool waits,
			  const struct translated_in *to)
{
	if (translated_asks(error, to))
		return false;
	error = mapped_error(w, error);
	if ((error == EINPROGRESS || error == EALREADY) && waits)
		gate_proceed(w);
	else if (!gate_answer(w, -error) && (error == 0 || error == EINPROGRESS))
		gate_note_lost(w);
	return true;
}

bool gate_connect_mapped(struct gate_worker *w)
{
	struct translated_in to;
	struct translated_in6 mapped;
	int file, flags, error;

	if (w->n.data.args[5] == MARK_ASK || w->request.length < sizeof(to))
		return false;
	memcpy(&to, w->request.address, sizeof(to));
	if (!translated_is_near(&to) && !translated_is_virtual(gate.board, &to))
		return false;
	mapped = translated_to6(&to);
	file = gate_file_of(w, w->request.number);
	if (file < 0)
		return false;
	flags = fcntl(file, F_GETFL);
	if (flags < 0 || !mapped_may_be_translated(file, &to) || !gate_valid(&w->n)) {
		close(file);
		return false;
	}
	error = mapped_begin(file, flags, &mapped);
	if (error == ENETUNREACH && mapped_is_ip6(file))
		error = EINVAL;
	close(file);
	return mapped_answer(w, error, !(flags & O_NONBLOCK), &to);
}
