// SPDX-License-Identifier: Apache-2.0
/*
 * The gate: answers the simple system calls of one container's seccomp filter, and passes the
 * others on to the supervisor.
 *
 * Theory of operation
 *
 * The gate is started in the host's network namespace and in the cgroup whose
 * kernel programs police the container's host sockets. Its threads wait for
 * notifications (seccomp_unotify(2)). For
 *
 *   socket	it makes the socket itself and gives it to the program, where the
 *		rules say that sockets are made on the host first;
 *   connect,	it looks whether the socket is already where the destination
 *   send	lies. If so, the kernel carries on with the call;
 *   getsockname,	it answers where IPv4 is translated;
 *   accept
 *   all else	it reads what the arguments point to and sends it to the
 *		supervisor, which answers the notification itself. (It reads no option: the
 *		supervisor does, where it needs one.)
 *
 * Calls on sockets other than IP or AF_GRAFT pass through unchanged: container engines compose our
 * filter with their own, which may trap more calls.
 *
 * threads.c has the threads, and says what happens if one never returns. pending.c has the requests
 * to the supervisor, control.c the life of the gate without one.
 *
 * Time of check. A notification names its caller by thread id, which another thread may get once
 * the caller is dead. So all that was read by that id, memory or descriptor, counts only if
 * NOTIF_ID_VALID says afterwards that the caller still waits. When the kernel carries on, it reads
 * the address again, and the program may have changed it. If the new address does not lie where the
 * socket is, then on the host the kernel programs refuse it, and in the container's own namespace
 * it reaches only what the container reaches anyway.
 *
 * Signals. An ADDFD that a signal interrupts can leave the program with a call
 * that returned 0 instead of a descriptor: the kernel takes the file back but
 * not the reply that SECCOMP_ADDFD_FLAG_SEND made of it (seen on 6.18). The gate
 * blocks all signals.
 */
#define _GNU_SOURCE
#include "handle.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../include/tsugiki/graft.h"
#include "../../shim/c/marks.h"
#include "accepts.h"
#include "answer.h"
#include "caller.h"
#include "decide.h"
#include "foreign.h"
#include "gate.h"
#include "mapped.h"
#include "names.h"
#include "pending.h"
#include "sockets.h"
#include "stats.h"
#include "waiting.h"

/* The kernel refuses an address that is longer than struct sockaddr_storage. */
#define GATE_SOCKADDR_MAX 128

static void gate_socket(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;
	struct gate_kind kind;
	int file, error;

	if (!gate_kind_of(gate.board->host_first, (int)args[0], (int)args[1], (int)args[2],
			  &kind)) {
		gate_proceed(w);
		return;
	}
	gate_report(w);
	file = gate_take(&kind);
	if (file < 0) {
		/* The first two are about the gate, not about the program; with the third, the gate
		 * was moved out of its cgroup. */
		if (errno == EMFILE || errno == ENFILE || errno == EXDEV)
			gate_proceed(w);
		else
			gate_answer(w, -errno);
		return;
	}
	error = gate_deliver_socket(w, file, kind.close_on_exec) ? 0 : errno;
	GATE_COUNT(single, error == 0);
	GATE_COUNT(misses, error == 0 && args[5] == MARK_ASK);
	if (error == EMFILE || error == ENFILE || error == ENOMEM)
		gate_answer(w, -error); /* the program's own limits are reached */
	else if (error != 0 && error != ENOENT)
		gate_proceed(w);
}

/* Whether a socket is already where the destination lies. */
static bool gate_in_place(struct gate_worker *w, int number, const struct board_address *to)
{
	struct board_place place = board_place_for(gate.board, to);
	bool bound = false;

	if (place.verdict != BOARD_LOOK)
		return place.verdict == BOARD_IN_PLACE;
	return gate_netns_of(w, number, place.unbound ? &bound : NULL) == place.netns && !bound;
}

/* Reads a sockaddr into the request. */
static void gate_read_address(struct gate_worker *w, uint64_t from, uint32_t length)
{
	if (length > GATE_SOCKADDR_MAX)
		return; /* the kernel refuses it */
	if (length > BOARD_ADDRESS_MAX)
		length = BOARD_ADDRESS_MAX;
	w->request.length = (uint16_t)gate_read(&w->n, from, w->request.address, length);
}

/* Whether a socket may be a translated one, to which the kernel refuses IPv4 addresses. */
static bool gate_may_be_translated(struct gate_worker *w)
{
	return gate.board->untrapped & BOARD_TRANSLATED && gate_may_be_ip6(w, w->request.number);
}

/*
 * A connect where IPv4 is translated. The supervisor knows the hosts that the kernel programs do
 * not know, and reports both addresses of a connect.
 */
static void gate_connect_translated(struct gate_worker *w, const struct board_address *to)
{
	if (to->where == BOARD_NO_IP || !to->is4) {
		gate_proceed(w);
		return;
	}
	if (!atomic_load_explicit(&gate.board->traced, memory_order_relaxed) &&
	    gate_connect_mapped(w))
		return;
	gate_pass_if(w, !to->loopback || gate_may_be_translated(w));
}

static void gate_destination(struct gate_worker *w, uint64_t from, uint32_t length)
{
	struct board_address to;
	bool translated = gate.board->untrapped & BOARD_TRANSLATED;

	/* The kernel programs decide and report the call. */
	if (gate.board->untrapped && !(translated && w->request.call == GATE_CONNECT)) {
		gate_proceed(w);
		return;
	}
	gate_read_address(w, from, length);
	to = board_look_up(gate.board, BOARD_SIZE, w->request.address, w->request.length);
	if (translated) {
		gate_connect_translated(w, &to);
		return;
	}
	if (!gate_valid(&w->n))
		return;
	if (to.where == BOARD_NO_IP) {
		gate_proceed(w);
		return;
	}
	if (!gate_in_place(w, w->request.number, &to)) {
		gate_pass(w);
		return;
	}
	gate_report(w);
	gate_proceed(w);
}

static void gate_bind(struct gate_worker *w)
{
	gate_read_address(w, w->n.data.args[1], (uint32_t)w->n.data.args[2]);
	if (!gate_valid(&w->n))
		return;
	gate_await_deliveries();
	gate_waiting_forget();
	if (board_bind_is_free(gate.board, w->request.address, w->request.length) &&
	    !gate_may_be_translated(w)) {
		gate_report(w);
		gate_proceed(w);
		return;
	}
	if (!gate_bind_is_passed(w->request.address, w->request.length)) {
		gate_proceed(w);
		return;
	}
	gate_pass(w);
}

/* Gives the shim a descriptor of the board. No process can write through it. */
static void gate_give_board(struct gate_worker *w)
{
	if (!gate_deliver(w, gate.board_file, true) && errno != ENOENT)
		gate_proceed(w); /* which fails, as without a gate */
}

static void gate_serve_shim(struct gate_worker *w)
{
	unsigned int made;

	switch (w->n.data.args[1]) {
	case MARK_BOARD:
		gate_give_board(w);
		return;
	case MARK_BATCH:
		made = gate_batch(w);
		if (made > 0) {
			gate_answer(w, made);
			return;
		}
	}
	gate_proceed(w); /* which fails, as without a gate */
}

/*
 * struct mmsghdr begins with a struct msghdr, which begins with the pointer to the address and its
 * length. The first message decides.
 */
static void gate_send_message(struct gate_worker *w)
{
	struct {
		uint64_t name;
		uint32_t length;
	} head;

	if (gate_read(&w->n, w->n.data.args[1], &head, 12) < 12 || head.name == 0) {
		gate_proceed(w);
		return;
	}
	/* Unlike for sendto(2), the kernel cuts off an address that is too long. */
	if (head.length > GATE_SOCKADDR_MAX && head.length <= INT32_MAX)
		head.length = GATE_SOCKADDR_MAX;
	gate_destination(w, head.name, head.length);
}

/*
 * Programs that isolate themselves in a network namespace of their own must not get sockets of the
 * host. The gate looks for them only after a program has asked for such a namespace.
 */
static bool gate_is_elsewhere(const struct seccomp_notif *n)
{
	char path[sizeof("/proc/4294967295/ns/net")];
	struct stat st;

	if (!atomic_load(&gate.board->nested))
		return false;
	snprintf(path, sizeof(path), "/proc/%u/ns/net", n->pid);
	return stat(path, &st) == 0 && st.st_ino != gate.own && gate_valid(n);
}

static enum gate_call gate_call_of(int number)
{
	switch (number) {
	case SYS_socket:
		return GATE_SOCKET;
	case SYS_connect:
		return GATE_CONNECT;
	case SYS_bind:
		return GATE_BIND;
	case SYS_listen:
		return GATE_LISTEN;
	case SYS_sendto:
	case SYS_sendmsg:
	case SYS_sendmmsg:
		return GATE_SEND;
	case SYS_setsockopt:
		return GATE_SETSOCKOPT;
	case SYS_getsockopt:
		return GATE_GETSOCKOPT;
	case SYS_getsockname:
	case SYS_getpeername:
	case SYS_accept:
	case SYS_accept4:
		return GATE_GETSOCKNAME;
	case SYS_ioctl:
		return GATE_IOCTL;
	}
	return GATE_OTHER;
}

static void gate_handle_socket(struct gate_worker *w)
{
	if (w->request.number == AF_GRAFT)
		gate_pass(w);
	else if (gate_family_is_elsewhere(w->request.number))
		gate_answer(w, -EAFNOSUPPORT);
	else if (w->request.number == MARK_FAMILY && w->n.data.args[5] == MARK_SHIM)
		gate_serve_shim(w);
	else
		gate_socket(w);
}

/* Returns which name a call asks for. */
static uint8_t gate_name_of(int number)
{
	if (number == SYS_getsockname)
		return GATE_NAME_OWN;
	return number == SYS_getpeername ? GATE_NAME_PEER : GATE_NAME_ACCEPT;
}

/*
 * Whether accept(2) may be of a listener of two network namespaces (graft/own.go). The program's
 * one of these is never in the container's own namespace, where unix sockets are, too.
 */
static bool gate_accepts_of_two(struct gate_worker *w)
{
	return gate_netns_of(w, w->request.number, NULL) != gate.board->own;
}

/* A socket may have IPv6 names where its program wants IPv4 ones. */
static void gate_name(struct gate_worker *w)
{
	bool translated = gate.board->untrapped & BOARD_TRANSLATED;

	w->request.name = gate_name_of(w->n.data.nr);
	if (w->n.data.nr == SYS_accept)
		w->request.args[3] = 0; /* it has no flags */
	if (w->request.name == GATE_NAME_ACCEPT && translated)
		gate_accept(w);
	else if (translated)
		gate_answer_name(w);
	else if (w->request.name == GATE_NAME_ACCEPT)
		gate_pass_if(w, gate_accepts_of_two(w));
	else
		gate_pass_if(w, w->request.name == GATE_NAME_OWN &&
					atomic_load(&gate.board->afgraft_sockets));
}

static void gate_handle_native(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;
	bool afgraft_sockets = atomic_load(&gate.board->afgraft_sockets);

	switch (w->n.data.nr) {
	case SYS_socket:
		gate_handle_socket(w);
		break;
	/* Options and names of sockets that may be AF_GRAFT ones. */
	case SYS_setsockopt:
		/* Options of SOL_SOCKET are never delayed. */
		gate_pass_if(w, (int)args[1] == IPPROTO_GRAFT ||
					(afgraft_sockets && (int)args[1] != SOL_SOCKET));
		break;
	case SYS_getsockopt:
		gate_pass_if(w, (int)args[1] == IPPROTO_GRAFT);
		break;
	case SYS_getsockname:
	case SYS_getpeername:
	case SYS_accept:
	case SYS_accept4:
		gate_name(w);
		break;
	case SYS_connect:
		gate_destination(w, args[1], (uint32_t)args[2]);
		break;
	case SYS_sendto:
		gate_destination(w, args[4], (uint32_t)args[5]);
		break;
	case SYS_sendmsg:
	case SYS_sendmmsg:
		gate_send_message(w);
		break;
	case SYS_bind:
		gate_bind(w);
		break;
	default:
		gate_proceed(w);
	}
}

void gate_handle(struct gate_worker *w)
{
	const struct seccomp_notif *n = &w->n;
	bool elsewhere = gate_is_elsewhere(n);

	w->outcome = GATE_BY_NOBODY;
	w->request = (struct gate_request){
		.version = GATE_VERSION,
		.call = GATE_OTHER,
		.id = n->id,
		.thread = n->pid,
		.number = (int32_t)n->data.args[0],
		.backlog = (int32_t)n->data.args[1], /* of listen(2) */
	};
	_Static_assert(sizeof(w->request.args) == sizeof(n->data.args), "all arguments");
	memcpy(w->request.args, n->data.args, sizeof(w->request.args));

	if (gate_is_leaving(n)) {
		atomic_store(&gate.board->nested, 1);
		gate_proceed(w);
		return;
	}
	if (n->data.arch != GATE_ARCH || n->data.nr >= GATE_X32) {
		gate_foreign(w);
		return;
	}
	w->request.call = gate_call_of(n->data.nr);
	/* These two are checked for every caller: the socket may be an inherited host socket. */
	if (n->data.nr == SYS_listen)
		gate_pass_if(w, !gate.board->untrapped);
	else if (n->data.nr == SYS_ioctl)
		gate_pass_if(w, gate_ioctl_is_passed((uint32_t)w->n.data.args[1]));
	else if (elsewhere)
		gate_proceed(w);
	else
		gate_handle_native(w);
}
