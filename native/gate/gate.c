// SPDX-License-Identifier: Apache-2.0
/*
 * The gate: answers the system calls of one container's seccomp filter that
 * need no thought, and passes the others on to the supervisor.
 *
 * Theory of operation
 *
 * The gate is born in the host's network namespace and in the cgroup whose
 * kernel programs police the container's host sockets. Its threads wait for
 * notifications (seccomp_unotify(2)). For
 *
 *   socket	it makes the socket itself and gives it to the program, where the
 *		rules say that sockets are born on the host;
 *   connect,	it looks whether the socket is already where the destination
 *   send	lies. If so, the kernel carries on with the call;
 *   all else	it reads what the arguments point to and asks the supervisor,
 *		who answers the notification itself. (It reads no option: the
 *		supervisor does, where it needs one.)
 *
 * Who does that, and what happens if it takes for ever, is threads.c's.
 *
 * What may be believed. A notification names its caller by thread id, which is
 * somebody else's once the caller is dead. So everything that was got by that
 * id, memory or descriptor, counts only if NOTIF_ID_VALID says afterwards that
 * the caller still waits. What the kernel reads again when it carries on may be
 * another address by then: if that is not where the socket is, then on the host
 * the kernel programs refuse it, and in the container's own namespace it reaches
 * what the container reaches anyway.
 *
 * Signals. An ADDFD that a signal interrupts can leave the program with a call
 * that returned 0 instead of a descriptor: the kernel takes the file back but
 * not the reply that SECCOMP_ADDFD_FLAG_SEND made of it (seen on 6.18). The gate
 * blocks all signals.
 */
#define _GNU_SOURCE
#include "../../bpf/options.h"
#include "../shim/marks.h"
#include "gate.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
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

#if defined(__x86_64__)
#define GATE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define GATE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the system calls of this architecture are not known here"
#endif

/* From linux/seccomp.h, where it is too old. */
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND 2
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
#define GATE_SYNC_WAKE_UP 1

/* System calls of the 32-bit ABIs, which the C library does not name here. */
#define GATE_X32	     0x40000000
#define GATE_I386_SOCKETCALL 102
#define GATE_I386_SETSOCKOPT 366
#define GATE_X32_SETSOCKOPT  (GATE_X32 | 541)
#define GATE_ARM_SETSOCKOPT  294

#define GATE_I386_UNSHARE 310
#define GATE_I386_SETNS	  346
#define GATE_I386_CLONE	  120
#define GATE_ARM_UNSHARE  337
#define GATE_ARM_SETNS	  375
#define GATE_ARM_CLONE	  120

/* socketcall(2)'s first argument, linux/net.h. */
#define GATE_SYS_LISTEN 4

/* Beyond struct sockaddr_storage the kernel refuses an address. */
#define GATE_SOCKADDR_MAX 128

static void gate_answer(const struct seccomp_notif *n, int64_t value, uint32_t flags)
{
	struct seccomp_notif_resp r = {.id = n->id, .flags = flags};

	if (value < 0)
		r.error = (int32_t)value;
	else
		r.val = value;

	/* ENOENT: the caller is gone, and nobody is left to be told. */
	(void)ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
}

static void gate_proceed(const struct seccomp_notif *n)
{
	gate_answer(n, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

static void gate_tell(const struct gate_ask *ask)
{
	/* If the supervisor is gone, the call waits until all are killed. */
	(void)send(gate.control, ask, sizeof(*ask), MSG_NOSIGNAL);
}

static void gate_report(struct gate_ask *ask)
{
	if (!gate.report)
		return;
	ask->answered = 1;
	gate_tell(ask);
}

static bool gate_deliver(const struct seccomp_notif *n, int file, bool close_on_exec)
{
	struct seccomp_notif_addfd add = {
		.id = n->id,
		.flags = SECCOMP_ADDFD_FLAG_SEND,
		.srcfd = (uint32_t)file,
		.newfd_flags = close_on_exec ? SOCK_CLOEXEC : 0,
	};

	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add) >= 0;
}

static void gate_socket(const struct seccomp_notif *n, struct gate_ask *ask)
{
	struct gate_kind kind;
	int file, error;

	if (!gate_kind_of(gate.board->born, (int)n->data.args[0], (int)n->data.args[1],
			  (int)n->data.args[2], &kind)) {
		gate_proceed(n);
		return;
	}
	ask->call = GATE_SOCKET;
	gate_report(ask);
	file = gate_make(&kind);
	if (file < 0) {
		/* The first two are about the gate, not about the program; with
		 * the third, somebody has moved the gate out of its cgroup. */
		if (errno == EMFILE || errno == ENFILE || errno == EXDEV)
			gate_proceed(n);
		else
			gate_answer(n, -errno, 0);
		return;
	}
	if (kind.nonblock)
		fcntl(file, F_SETFL, O_RDWR | O_NONBLOCK);
	error = gate_deliver(n, file, kind.close_on_exec) ? 0 : errno;
	close(file);
	if (error == EMFILE || error == ENFILE || error == ENOMEM)
		gate_answer(n, -error, 0); /* the program's own limits */
	else if (error != 0 && error != ENOENT)
		gate_proceed(n);
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

/* Reads a sockaddr into ASK. Returns whether the caller still waits. */
static bool gate_read_address(const struct seccomp_notif *n, uint64_t from, uint32_t length,
			      struct gate_ask *ask)
{
	if (length > GATE_SOCKADDR_MAX)
		return true; /* the kernel refuses it */
	if (length > BOARD_ADDRESS_MAX)
		length = BOARD_ADDRESS_MAX;
	ask->length = (uint32_t)gate_read(n, from, ask->address, length);
	return gate_valid(n);
}

static void gate_destination(struct gate_worker *w, struct gate_ask *ask, uint64_t from,
			     uint32_t length)
{
	struct board_address to;

	if (!gate_read_address(&w->n, from, length, ask))
		return;
	to = board_look_up(gate.board, BOARD_SIZE, ask->address, ask->length);
	if (to.where == BOARD_NO_IP) {
		gate_proceed(&w->n);
		return;
	}
	if (!gate_in_place(w, ask->number, &to)) {
		gate_tell(ask);
		return;
	}
	gate_report(ask);
	gate_proceed(&w->n);
}

/* Gives the shim a descriptor of the board, which nobody can write to. */
static void gate_give_board(const struct seccomp_notif *n)
{
	if (!gate_deliver(n, gate.board_file, true) && errno != ENOENT)
		gate_proceed(n); /* which fails, as without a gate */
}

static void gate_serve_shim(struct gate_worker *w)
{
	unsigned int made;

	switch (w->n.data.args[1]) {
	case MARK_BOARD:
		gate_give_board(&w->n);
		return;
	case MARK_BATCH:
		made = gate_batch(w);
		if (made > 0) {
			gate_answer(&w->n, made, 0);
			return;
		}
	}
	gate_proceed(&w->n); /* which fails, as without a gate */
}

/*
 * struct mmsghdr begins with a struct msghdr, and that with the pointer to the
 * address and its length. The first message decides.
 */
static void gate_send_message(struct gate_worker *w, struct gate_ask *ask)
{
	struct {
		uint64_t name;
		uint32_t length;
	} head;

	if (gate_read(&w->n, w->n.data.args[1], &head, 12) < 12 || head.name == 0) {
		gate_proceed(&w->n);
		return;
	}
	/* Unlike sendto(2), the kernel cuts off what is too long. */
	if (head.length > GATE_SOCKADDR_MAX && head.length <= INT32_MAX)
		head.length = GATE_SOCKADDR_MAX;
	gate_destination(w, ask, head.name, head.length);
}

static void gate_listen(struct gate_ask *ask)
{
	ask->call = GATE_LISTEN;
	gate_tell(ask);
}

static void gate_option(const struct seccomp_notif *n, int level, int name)
{
	if (options_refused(level, name))
		gate_answer(n, -EPERM, 0);
	else
		gate_proceed(n);
}

/* Whether a call is one of those by which a program gets into another namespace: the
 * filter asks about no others of them. */
static bool gate_is_leaving(const struct seccomp_notif *n)
{
	switch (n->data.arch) {
	case AUDIT_ARCH_I386:
		return n->data.nr == GATE_I386_UNSHARE || n->data.nr == GATE_I386_SETNS ||
		       n->data.nr == GATE_I386_CLONE;
	case AUDIT_ARCH_ARM:
		return n->data.nr == GATE_ARM_UNSHARE || n->data.nr == GATE_ARM_SETNS ||
		       n->data.nr == GATE_ARM_CLONE;
	}
	switch (n->data.nr & ~GATE_X32) {
	case SYS_unshare:
	case SYS_setns:
	case SYS_clone:
		return true;
	}
	return false;
}

/*
 * The calls of other ABIs that would get around the kernel programs: listen(2),
 * which has none, and setsockopt(2), for which they are not asked. What
 * socketcall(2) points to may be another option when the kernel reads it: then
 * it is set, and the programs that judge destinations are still there.
 */
static void gate_foreign(const struct seccomp_notif *n, struct gate_ask *ask)
{
	int32_t args[3];

	if (n->data.arch == AUDIT_ARCH_I386 && n->data.nr == GATE_I386_SOCKETCALL) {
		if (gate_read(n, (uint32_t)n->data.args[1], args, sizeof(args)) < sizeof(args)) {
			gate_proceed(n); /* which fails */
			return;
		}
		if (!gate_valid(n))
			return;
		if (n->data.args[0] != GATE_SYS_LISTEN) {
			gate_option(n, args[1], args[2]);
			return;
		}
		ask->number = args[0];
		ask->backlog = args[1];
		gate_listen(ask);
		return;
	}
	if ((n->data.arch == AUDIT_ARCH_I386 && n->data.nr == GATE_I386_SETSOCKOPT) ||
	    (n->data.arch == AUDIT_ARCH_X86_64 && n->data.nr == GATE_X32_SETSOCKOPT) ||
	    (n->data.arch == AUDIT_ARCH_ARM && n->data.nr == GATE_ARM_SETSOCKOPT)) {
		gate_option(n, (int)n->data.args[1], (int)n->data.args[2]);
		return;
	}
	gate_listen(ask);
}

/*
 * Programs that shut themselves off, in a network namespace of their own making,
 * want no socket of the host's. They are only looked for once somebody has asked
 * for such a namespace.
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

void gate_handle(struct gate_worker *w)
{
	const struct seccomp_notif *n = &w->n;
	bool elsewhere = gate_is_elsewhere(n);
	struct gate_ask ask = {
		.version = GATE_VERSION,
		.id = n->id,
		.thread = n->pid,
		.number = (int32_t)n->data.args[0],
		.backlog = (int32_t)n->data.args[1], /* of listen(2) */
	};

	_Static_assert(sizeof(ask.args) == sizeof(n->data.args), "all arguments");
	memcpy(ask.args, n->data.args, sizeof(ask.args));

	if (gate_is_leaving(n)) {
		atomic_store(&gate.board->nested, 1);
		gate_proceed(n);
		return;
	}
	if (n->data.arch != GATE_ARCH || n->data.nr >= GATE_X32) {
		gate_foreign(n, &ask);
		return;
	}
	if (n->data.nr == SYS_listen) {
		/* Whoever asks: it may be a host socket that was inherited. */
		gate_listen(&ask);
		return;
	}
	if (elsewhere) {
		gate_proceed(n);
		return;
	}
	switch (n->data.nr) {
	case SYS_socket:
		if (ask.number == GATE_AF_GRAFT) {
			ask.call = GATE_SOCKET;
			gate_tell(&ask);
		} else if (ask.number == MARK_FAMILY && n->data.args[5] == MARK_SHIM) {
			gate_serve_shim(w);
		} else {
			gate_socket(n, &ask);
		}
		break;
	case SYS_setsockopt:
		ask.call = GATE_SETSOCKOPT;
		gate_tell(&ask);
		break;
	case SYS_getsockopt:
		ask.call = GATE_GETSOCKOPT;
		gate_tell(&ask);
		break;
	case SYS_getsockname:
		ask.call = GATE_GETSOCKNAME;
		gate_tell(&ask);
		break;
	case SYS_connect:
		ask.call = GATE_CONNECT;
		gate_destination(w, &ask, n->data.args[1], (uint32_t)n->data.args[2]);
		break;
	case SYS_sendto:
		ask.call = GATE_SEND;
		gate_destination(w, &ask, n->data.args[4], (uint32_t)n->data.args[5]);
		break;
	case SYS_sendmsg:
	case SYS_sendmmsg:
		ask.call = GATE_SEND;
		gate_send_message(w, &ask);
		break;
	case SYS_bind:
		ask.call = GATE_BIND;
		if (gate_read_address(n, n->data.args[1], (uint32_t)n->data.args[2], &ask))
			gate_tell(&ask);
		break;
	default:
		gate_proceed(n); /* the filter asks about nothing else */
	}
}

int main(int argc, char **argv)
{
	struct gate_ask hello = {.version = GATE_VERSION, .call = GATE_HELLO};

	gate_arguments(&gate, argc, argv);
	gate_start(&gate);
	/*
	 * Callers and the gate take turns: let them do so on one CPU (6.6). And
	 * when a caller has taken its descriptor, let it go on: the gate has
	 * nothing to do but to wait for its next call.
	 */
	(void)ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, GATE_SYNC_WAKE_UP);
	(void)syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &(struct sched_param){0});
	gate_start_threads();
	gate_tell(&hello);
	gate_watch();
}
