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
 *		who answers the notification itself.
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
#include "gate.h"
#include "worker.h"

#include <errno.h>
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
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#define GATE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define GATE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the system calls of this architecture are not known here"
#endif

/* From linux/seccomp.h and linux/pidfd.h, where these are too old. */
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND 2
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
#define GATE_SYNC_WAKE_UP 1
#define GATE_PIDFD_THREAD 0200 /* O_EXCL */

/* System calls of the 32-bit ABIs, which the C library does not name here. */
#define GATE_X32	     0x40000000
#define GATE_I386_SOCKETCALL 102
#define GATE_I386_SETSOCKOPT 366
#define GATE_X32_SETSOCKOPT  (GATE_X32 | 541)
#define GATE_ARM_SETSOCKOPT  294

/* socketcall(2)'s first argument, linux/net.h. */
#define GATE_SYS_LISTEN 4

/* Beyond struct sockaddr_storage the kernel refuses an address. */
#define GATE_SOCKADDR_MAX 128

struct gate gate;

/* Whether some process may be in a namespace that the program made. */
static atomic_bool gate_nested;

static void gate_answer(const struct seccomp_notif *n, int error, uint32_t flags)
{
	struct seccomp_notif_resp r = {.id = n->id, .error = -error, .flags = flags};

	/* ENOENT: the caller is gone, and nobody is left to be told. */
	(void)ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
}

static void gate_proceed(const struct seccomp_notif *n)
{
	gate_answer(n, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

static bool gate_valid(const struct seccomp_notif *n)
{
	uint64_t id = n->id;

	return ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

/* Returns how many bytes there were before the first that is not mapped. */
static size_t gate_read(const struct seccomp_notif *n, uint64_t from, void *to, size_t size)
{
	struct iovec local = {to, size}, remote = {(void *)(uintptr_t)from, size};
	ssize_t got = process_vm_readv((pid_t)n->pid, &local, 1, &remote, 1, 0);

	return got < 0 ? 0 : (size_t)got;
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

static bool gate_policed(int file)
{
	return setsockopt(file, 0 /* SOL_IP */, OPTIONS_PROOF, NULL, 0) != 0 && errno == EPERM;
}

static void gate_socket(const struct seccomp_notif *n, struct gate_ask *ask)
{
	struct seccomp_notif_addfd add = {.id = n->id, .flags = SECCOMP_ADDFD_FLAG_SEND};
	struct gate_kind kind;
	int file, added, error;

	if (!gate_kind_of(gate.born, (int)n->data.args[0], (int)n->data.args[1],
			  (int)n->data.args[2], &kind)) {
		gate_proceed(n);
		return;
	}
	ask->call = GATE_SOCKET;
	gate_report(ask);
	file = socket(kind.family, kind.type | SOCK_CLOEXEC, kind.protocol);
	if (file < 0) {
		/* The first two are about the gate, not about the program. */
		if (errno == EMFILE || errno == ENFILE)
			gate_proceed(n);
		else
			gate_answer(n, errno, 0);
		return;
	}
	if (!gate_policed(file)) {
		/* Somebody has moved the gate out of its cgroup. */
		close(file);
		gate_proceed(n);
		return;
	}
	add.srcfd = (uint32_t)file;
	add.newfd_flags = kind.close_on_exec ? SOCK_CLOEXEC : 0;
	added = ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
	error = errno;
	close(file);
	if (added >= 0 || error == ENOENT)
		return;
	if (error == EMFILE || error == ENFILE || error == ENOMEM)
		gate_answer(n, error, 0); /* the program's own limits */
	else
		gate_proceed(n);
}

/* The namespace of a descriptor of the caller; 0 if it is no socket. */
static uint64_t gate_netns_of(struct gate_worker *w, int number)
{
	uint64_t cookie = 0;
	socklen_t length = sizeof(cookie);
	int file = -1;

	for (int tries = 0; tries < 2 && file < 0; tries++) {
		if (w->pidfd < 0 || w->thread != w->n.pid) {
			if (w->pidfd >= 0)
				close(w->pidfd);
			w->thread = w->n.pid;
			w->pidfd = (int)syscall(SYS_pidfd_open, w->n.pid, GATE_PIDFD_THREAD);
		}
		if (w->pidfd < 0)
			return 0;
		file = (int)syscall(SYS_pidfd_getfd, w->pidfd, number, 0);
		if (file < 0 && errno != ESRCH)
			return 0;
		if (file < 0)
			w->thread = 0; /* whose id this was is gone */
	}
	if (file < 0)
		return 0;
	if (getsockopt(file, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) != 0)
		cookie = 0;
	close(file);
	return cookie;
}

static bool gate_on_host(uint64_t netns)
{
	const struct rules_endpoint *ep = rules_endpoints(gate.rules);

	if (netns == gate.host)
		return true;
	for (uint32_t i = 0; i < gate.rules->endpoints; i++)
		if (ep[i].netns == netns)
			return true;
	return false;
}

/* Whether a socket is already where the destination lies. */
static bool gate_in_place(struct gate_worker *w, int number, const struct gate_address *to)
{
	unsigned int born = to->is4 ? GATE_BORN_4 : GATE_BORN_6;
	uint64_t netns;

	if (to->where == GATE_OTHER)
		return false;
	/* One of its servers may be there, on the host. */
	if (to->where == GATE_OWN && to->loopback && atomic_load(&gate.shared->services))
		return false;
	if (to->where == GATE_HOST && to->netns == gate.host && (gate.born & born) &&
	    !atomic_load(&gate.shared->own_sockets))
		return true;
	netns = gate_netns_of(w, number);
	if (netns == 0)
		return false;
	return to->where == GATE_HOST ? netns == to->netns : !gate_on_host(netns);
}

/* Reads a sockaddr into ASK. Returns whether the caller still waits. */
static bool gate_read_address(const struct seccomp_notif *n, uint64_t from, uint32_t length,
			      struct gate_ask *ask)
{
	if (length > GATE_SOCKADDR_MAX)
		return true; /* the kernel refuses it */
	if (length > GATE_ADDRESS_MAX)
		length = GATE_ADDRESS_MAX;
	ask->length = (uint32_t)gate_read(n, from, ask->address, length);
	return gate_valid(n);
}

static void gate_destination(struct gate_worker *w, struct gate_ask *ask, uint64_t from,
			     uint32_t length)
{
	struct gate_address to;

	if (!gate_read_address(&w->n, from, length, ask))
		return;
	to = gate_look_up(gate.rules, ask->address, ask->length);
	if (to.where == GATE_NO_IP) {
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
		gate_answer(n, EPERM, 0);
	else
		gate_proceed(n);
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

	if (!atomic_load(&gate_nested))
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

	if (n->data.arch != GATE_ARCH || n->data.nr >= GATE_X32) {
		gate_foreign(n, &ask);
		return;
	}
	switch (n->data.nr) {
	case SYS_unshare:
	case SYS_setns:
	case SYS_clone:
		atomic_store(&gate_nested, true);
		gate_proceed(n);
		return;
	case SYS_listen:
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
		gate_socket(n, &ask);
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
