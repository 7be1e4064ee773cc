// SPDX-License-Identifier: Apache-2.0
/*
 * accept(2) where IPv4 is translated.
 *
 * The kernel would write the IPv6 name of the peer. So where the program wants a name, the gate
 * accepts the connection, writes the name, and gives the program the connection. It accepts without
 * waiting. If there is no connection and the program waits, the call waits in the gate (waiting.c).
 * Where the program wants no name, and for listeners that are not translated, the kernel carries
 * on.
 *
 * A peer that has no virtual address yet, only the supervisor can name, and only it can open the
 * memory of a caller (caller.c). By then the gate has accepted the connection. It keeps the
 * connection and the call (waiting.c) until the supervisor has told the name. The program gets the
 * connection and the answer by one call (ADDFD): else a signal in between would leave it a
 * descriptor that it does not know of, and the kernel would accept again. Only if the gate has no
 * room for the call, if the supervisor is of a version that tells no names, or if it could not open
 * the memory, the program gets the connection under a number, and the supervisor writes the name
 * and answers with the number.
 *
 * Errors are the kernel's: a connection that cannot be given to the program is closed. But the
 * kernel keeps a connection for which the program has no descriptor left (EMFILE), which is closed
 * here.
 *
 * Flags. The program shares the listener's flags with the gate. A listener that waits has
 * O_NONBLOCK for the moment in which the gate accepts, and only if there is a connection. If the
 * program clears the flag in this moment, and another thread takes the connection, the gate's
 * thread waits with the lock. The supervisor answers the other calls then, and those for which the
 * gate has no room or no descriptor left. It sets the flag for a moment, too, with a lock of its
 * own. So once it has got such a call that waits, a listener that seems not to wait may, and the
 * supervisor is asked; and the supervisor is told of calls that wait.
 */
#define _GNU_SOURCE
#include "accepts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "caller.h"
#include "gate.h"
#include "messages.h"
#include "names.h"
#include "pending.h"

/* Covers the flags of listeners. */
static pthread_mutex_t accepts_flags = PTHREAD_MUTEX_INITIALIZER;

/* The pauses until a thread that has the lock counts as one that waits with it: 5 ms in all. */
#define ACCEPTS_TRIES 50

/* Fails if another thread waits with the lock. */
static bool accepts_lock_flags(void)
{
	const struct timespec pause = {.tv_nsec = 100000};

	for (int i = 0; i < ACCEPTS_TRIES; i++) {
		if (pthread_mutex_trylock(&accepts_flags) == 0)
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

/* The SO_COOKIE of the listener that has O_NONBLOCK of the gate; 0: none has. Its lock covers the
 * flag, too. Nothing waits while it is held. */
static uint64_t accepts_flagged;
static pthread_mutex_t accepts_flagged_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t accepts_identify(int listener)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);

	(void)getsockopt(listener, SOL_SOCKET, SO_COOKIE, &cookie, &length);
	return cookie;
}

/* Sets the flags of a listener. FLAGGED is its cookie if O_NONBLOCK is the gate's, else 0. */
static void accepts_set_flags(int listener, int flags, uint64_t flagged)
{
	pthread_mutex_lock(&accepts_flagged_lock);
	(void)fcntl(listener, F_SETFL, flags);
	accepts_flagged = flagged;
	pthread_mutex_unlock(&accepts_flagged_lock);
}

/* Whether calls on a listener wait, also while another thread accepts. */
static bool accepts_waits(int listener)
{
	uint64_t flagged;
	int mode;

	pthread_mutex_lock(&accepts_flagged_lock);
	mode = fcntl(listener, F_GETFL);
	flagged = accepts_flagged;
	pthread_mutex_unlock(&accepts_flagged_lock);
	if (mode < 0 || !(mode & O_NONBLOCK))
		return mode >= 0;
	return flagged != 0 && flagged == accepts_identify(listener);
}

/* Whether the supervisor has got a call that waits on a translated listener. */
static atomic_bool accepts_shared;

/* Passes a call on. */
static void accepts_pass(struct gate_worker *w, bool waits)
{
	w->request.waits = waits;
	if (waits)
		atomic_store(&accepts_shared, true);
	gate_pass(w);
}

/* Whether an error is the gate's, and not of the program's call: of accepts_take, or its own limit
 * of descriptors. */
static bool accepts_is_own_error(int error)
{
	return error == EBUSY || error == EMFILE || error == ENFILE;
}

/* Accepts a connection without waiting, as accept4(2) fails, or with EBUSY if the flags are locked.
 * WAITS says whether the program's call would wait. */
static int accepts_take(int listener, int flags, struct translated_in6 *peer, bool *waits)
{
	int mode, connection = -1, error = EAGAIN;
	socklen_t length = sizeof(*peer);

	if (!accepts_lock_flags()) {
		*waits = accepts_waits(listener);
		errno = EBUSY;
		return -1;
	}
	mode = fcntl(listener, F_GETFL);
	*waits = mode >= 0 && !(mode & O_NONBLOCK);
	if (!*waits || gate_has(listener, POLLIN | POLLHUP | POLLERR)) {
		if (*waits)
			accepts_set_flags(listener, mode | O_NONBLOCK, accepts_identify(listener));
		/* musl's accept4 calls accept(2) after EINVAL. */
		connection = (int)syscall(SYS_accept4, listener, peer, &length,
					  SOCK_CLOEXEC | (flags & SOCK_NONBLOCK));
		error = errno;
		if (*waits)
			accepts_set_flags(listener, mode, 0);
	}
	pthread_mutex_unlock(&accepts_flags);
	errno = error;
	return connection;
}

/* Gives the program a connection whose name the supervisor writes. */
static void accepts_give_unnamed(struct gate_worker *w, int connection)
{
	int number = gate_add(w, connection, w->request.args[3] & SOCK_CLOEXEC);

	close(connection);
	if (number < 0) {
		gate_answer(w, -errno);
		return;
	}
	w->request.name = GATE_NAME_ACCEPTED;
	w->request.number = number;
	gate_ask_for_memory(w);
	gate_pass(w);
}

/* Answers with a connection. The name is written before the program can use the connection, as by
 * the kernel. Returns false if the gate has not the caller's memory. */
static bool accepts_give_named(struct gate_worker *w, int connection,
			       const struct translated_in *name)
{
	enum gate_written written = GATE_WRITTEN_FAULT;
	uint32_t room;

	if (gate_memory_of(w) < 0)
		return false;
	if (gate_read_room(w, &room) && gate_valid(&w->n))
		written = gate_write_name(w, room, name);
	if (written == GATE_WRITTEN_NOWHERE)
		return false;
	if (written == GATE_WRITTEN_FAULT) {
		close(connection);
		gate_answer(w, -EFAULT);
	} else if (!gate_deliver_socket(w, connection, w->request.args[3] & SOCK_CLOEXEC)) {
		gate_answer(w, -errno);
	}
	return true;
}

/* Asks the supervisor for the name of a peer, and for the caller's memory. Returns false if there
 * is no room for the call. */
static bool accepts_ask_for_name(struct gate_worker *w, int connection,
				 const struct translated_in6 *peer)
{
	const struct gate_request before = w->request;

	_Static_assert(sizeof(*peer) <= BOARD_ADDRESS_MAX, "a request has room for the peer");
	w->request.name = GATE_NAME_ACCEPTED;
	w->request.number = -1;
	w->request.length = sizeof(*peer);
	memcpy(w->request.address, peer, sizeof(*peer));
	gate_ask_for_memory(w);
	if (gate_wait_for_name(w, connection)) { /* first: the name may come at once */
		gate_pass(w);
		return true;
	}
	w->request = before;
	return false;
}

static void accepts_give(struct gate_worker *w, int connection, const struct translated_in6 *peer)
{
	struct translated_in name;

	if (translated_to4(peer, true, &name) && accepts_give_named(w, connection, &name))
		return;
	if (!accepts_ask_for_name(w, connection, peer))
		accepts_give_unnamed(w, connection);
}

static bool accepts_listens(int file)
{
	int is = 0;
	socklen_t length = sizeof(is);

	return getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &is, &length) == 0 && is;
}

/*
 * Answers a call with a connection, or with the errno ERROR, or passes it on. Takes the listener,
 * and closes it before the program goes on: if the program has closed it, it takes no further
 * connections.
 */
static void accepts_end(struct gate_worker *w, int listener, int connection, int error, bool waits,
			const struct translated_in6 *peer)
{
	close(listener);
	if (connection >= 0)
		accepts_give(w, connection, peer);
	else if (accepts_is_own_error(error) || (error == EAGAIN && atomic_load(&accepts_shared)))
		accepts_pass(w, waits);
	else
		gate_answer(w, -error);
}

/* Answers a call on a listener, or has it wait. Takes the listener. */
static void accepts_answer(struct gate_worker *w, int listener)
{
	struct translated_in6 peer = {0};
	bool waits = false;
	int connection = accepts_take(listener, (int)w->request.args[3], &peer, &waits);

	if (connection >= 0 || errno != EAGAIN || !waits) {
		accepts_end(w, listener, connection, errno, waits, &peer);
	} else if (!accepts_listens(listener)) {
		close(listener);
		gate_proceed(w); /* the kernel says that it is no listener */
	} else if (!gate_wait_on(w, listener)) {
		close(listener);
		accepts_pass(w, true);
	}
}

/* Whether the kernel answers a call on a translated listener: no name is wanted, or none can be
 * written. The kernel says so once it has a connection. */
static bool accepts_is_kernels(struct gate_worker *w)
{
	uint32_t room;

	return (int)w->request.args[3] & ~(SOCK_NONBLOCK | SOCK_CLOEXEC) ||
	       w->n.data.args[1] == 0 || !gate_read_room(w, &room) || !gate_name_is_mapped(w, room);
}

void gate_accept(struct gate_worker *w)
{
	int listener;

	if (gate.board->untrapped & BOARD_RELAYED) {
		gate_pass(w);
		return;
	}
	listener = gate_file_of(w, w->request.number);
	if (listener < 0) {
		gate_pass_if(w, errno != EBADF);
		return;
	}
	if (!gate_file_is_translated(listener)) {
		gate_pass_if(w, atomic_load(&gate.board->expects));
	} else if (accepts_is_kernels(w)) {
		gate_proceed(w);
	} else if (gate_valid(&w->n)) {
		accepts_answer(w, listener);
		return;
	}
	close(listener);
}

/* Answers a call that has waited. Returns false if there is no connection for it. */
static bool accepts_serve(struct gate_worker *w, const struct gate_waiting *call)
{
	struct translated_in6 peer = {0};
	int connection;
	bool waits = false;

	if (!gate_valid(&w->n)) {
		close(call->file);
		return true;
	}
	connection = accepts_take(call->file, (int)w->request.args[3], &peer, &waits);
	if (connection >= 0 || errno != EAGAIN) {
		accepts_end(w, call->file, connection, errno, true, &peer);
		return true;
	}
	if (gate_waiting_keep(call))
		return false;
	close(call->file);
	accepts_pass(w, true);
	return true;
}

/* Answers a call whose peer has got its name. */
static void accepts_serve_named(struct gate_worker *w, const struct gate_waiting *call)
{
	struct translated_in name = {.family = AF_INET};
	struct translated_in6 peer;

	if (!gate_valid(&w->n)) {
		close(call->file);
		return;
	}
	memcpy(&peer, w->request.address, sizeof(peer));
	name.port = peer.port;
	memcpy(name.addr, &call->name, sizeof(name.addr));
	if (!accepts_give_named(w, call->file, &name))
		accepts_give_unnamed(w, call->file); /* there was a fault of the supervisor's */
}

void gate_accept_for(struct gate_worker *w, const struct gate_ready *ready)
{
	struct gate_waiting named;

	while (ready->named && gate_waiting_take_named(w, &named))
		accepts_serve_named(w, &named);
	for (unsigned int i = 0; i < ready->count; i++) {
		struct gate_waiting call;

		while (gate_waiting_take(w, ready->cookies[i], &call) && accepts_serve(w, &call))
			;
	}
}
