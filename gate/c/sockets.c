// SPDX-License-Identifier: Apache-2.0
/*
 * Makes sockets: one for a program that waits, or many in advance for its shim (shim/c/marks.h).
 *
 * (Sockets for shims are made when a shim orders them. A thread that made the next ones in the
 * meantime took more CPU time than it saved: what one CPU allocates, another then frees.)
 */
#define _GNU_SOURCE
#include "sockets.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../bpf/options.h"
#include "../../shim/c/marks.h"
#include "caller.h"
#include "gate.h"
#include "messages.h"
#include "stats.h"

/* Whether the kernel programs police a socket. */
static bool gate_policed(int file)
{
	return setsockopt(file, 0 /* SOL_IP */, OPTIONS_PROOF, NULL, 0) != 0 && errno == EPERM;
}

/*
 * Makes an IPv6 socket for a program that wants an IPv4 one of TCP, where IPv4 is translated. It is
 * connected to mapped addresses (bpf/translated.h). That it is policed needs no other proof: the
 * kernel itself does not know the option.
 */
static int gate_make_translated(int flags)
{
	const int yes = 1;
	int file = socket(AF_INET6, SOCK_STREAM | flags, IPPROTO_TCP);

	if (file < 0 || setsockopt(file, IPPROTO_IPV6, OPTIONS_TRANSLATED, &yes, sizeof(yes)) == 0)
		return file;
	close(file);
	return -1;
}

/* Makes a socket. PROVEN says whether it is known to be policed. */
static int gate_make_any(const struct gate_kind *kind, bool *proven)
{
	int flags = SOCK_CLOEXEC | (kind->nonblock ? SOCK_NONBLOCK : 0), file = -1;

	if (gate.board->untrapped & BOARD_TRANSLATED && kind->family == AF_INET &&
	    kind->type == SOCK_STREAM)
		file = gate_make_translated(flags);
	*proven = file >= 0;
	return file >= 0 ? file : socket(kind->family, kind->type | flags, kind->protocol);
}

int gate_make(const struct gate_kind *kind)
{
	bool proven;
	int file = gate_make_any(kind, &proven);

	if (file >= 0 && !proven && !gate_policed(file)) {
		close(file);
		errno = EXDEV;
		return -1;
	}
	return file;
}

/*
 * A thread that has made some sockets of a kind, one at a time, makes the next one while the
 * program goes on: the thread wakes up anyway when the program has got its socket. So static
 * programs wait less.
 */
enum { GATE_SPARE_AFTER = 3 };

static _Thread_local struct {
	bool made;
	int file;
	unsigned int taken; /* number taken of the kind, one after another */
	struct gate_kind kind;
} gate_spare;

int gate_take(const struct gate_kind *kind)
{
	const struct gate_kind *last = &gate_spare.kind;

	if (last->family != kind->family || last->type != kind->type ||
	    last->nonblock != kind->nonblock) {
		gate_close_spare();
		gate_spare.kind = *kind;
		gate_spare.taken = 0;
	}
	if (gate_spare.taken < GATE_SPARE_AFTER)
		gate_spare.taken++;
	if (!gate_spare.made)
		return gate_make(kind);
	gate_spare.made = false;
	return gate_spare.file;
}

void gate_make_spare(void)
{
	if (gate_spare.made || gate_spare.taken < GATE_SPARE_AFTER)
		return;
	gate_spare.file = gate_make(&gate_spare.kind);
	gate_spare.made = gate_spare.file >= 0;
	if (!gate_spare.made)
		gate_spare.taken = 0;
}

void gate_close_spare(void)
{
	if (gate_spare.made)
		close(gate_spare.file);
	gate_spare.made = false;
}

/*
 * Whether FILE is one end of a socketpair(2) that the caller has made. Then messages there reach
 * only processes to which the caller itself can send.
 */
static bool gate_is_pair_of(const struct seccomp_notif *n, int file)
{
	char path[sizeof("/proc/4294967295/task/4294967295")];
	struct ucred maker;
	int domain, type;
	socklen_t length = sizeof(domain);

	if (getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX)
		return false;
	length = sizeof(type);
	if (getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET)
		return false;
	length = sizeof(maker);
	if (getsockopt(file, SOL_SOCKET, SO_PEERCRED, &maker, &length) != 0 || maker.pid <= 0)
		return false;
	snprintf(path, sizeof(path), "/proc/%u/task/%u", (unsigned int)maker.pid, n->pid);
	return access(path, F_OK) == 0 && gate_valid(n);
}

/*
 * Descriptors in messages count against the sender's user, on the whole machine. So at most one
 * batch is under way, whichever thread has sent it. A program that does not receive its batch gets
 * no other, and blocks the batches of others.
 */
static pthread_mutex_t gate_batch_lock = PTHREAD_MUTEX_INITIALIZER;
static int gate_batch_sent_to = -1;

static bool gate_batch_is_taken(void)
{
	int queued;

	if (gate_batch_sent_to < 0)
		return true;
	if (ioctl(gate_batch_sent_to, SIOCOUTQ, &queued) == 0 && queued > 0)
		return false;
	close(gate_batch_sent_to);
	gate_batch_sent_to = -1;
	return true;
}

bool gate_batch_is_under_way(void)
{
	bool under_way;

	pthread_mutex_lock(&gate_batch_lock);
	under_way = !gate_batch_is_taken();
	pthread_mutex_unlock(&gate_batch_lock);
	return under_way;
}

static unsigned int gate_batch_to(int pair, const struct gate_kind *kind, unsigned int count)
{
	int files[MARK_BATCH_MAX];
	unsigned int made = 0;
	bool sent, proven;

	while (made < count && (files[made] = gate_make_any(kind, &proven)) >= 0)
		made++;
	/* If the gate is moved out of its cgroup meanwhile, the last socket shows that. */
	sent = made > 0 && gate_policed(files[0]) && gate_policed(files[made - 1]) &&
	       gate_send_files(pair, "", 1, files, made, MSG_DONTWAIT);
	for (unsigned int i = 0; i < made; i++)
		close(files[i]);
	return sent ? made : 0;
}

unsigned int gate_batch(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;
	struct gate_kind kind;
	unsigned int made = 0;
	int pair;

	if (args[4] < 1 || args[4] > MARK_BATCH_MAX ||
	    !gate_kind_of(gate.board->host_first, (int)(args[3] >> 8 & 0xff), (int)(args[3] & 0xff),
			  0, &kind))
		return 0;
	if (pthread_mutex_trylock(&gate_batch_lock) != 0)
		return 0;
	pair = gate_batch_is_taken() ? gate_file_of(w, (int)args[2]) : -1;
	if (pair >= 0 && gate_is_pair_of(&w->n, pair)) {
		/* The files are closed before the answer, but a signal may let the program go on
		 * earlier. */
		atomic_store(&w->delivers, w->n.id);
		made = gate_batch_to(pair, &kind, (unsigned int)args[4]);
		atomic_store(&w->delivers, 0);
	}
	if (made > 0)
		gate_batch_sent_to = pair;
	else if (pair >= 0)
		close(pair);
	pthread_mutex_unlock(&gate_batch_lock);
	if (made > 0)
		GATE_COUNT(batches, 1);
	GATE_COUNT(batch_sockets, made);
	return made;
}
