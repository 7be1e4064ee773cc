// SPDX-License-Identifier: Apache-2.0
/*
 * The gate and its supervisor.
 *
 * The first thread carries out the supervisor's orders, sends requests for which the socket had no
 * room, and notices when the supervisor has gone. What the gate does then depends on its start:
 *
 *   kill	the container ends with its supervisor: the gate kills its cgroup,
 *		itself included. (The keeper does so too, but a program of its own
 *		user can stop that one.)
 *   pool	nothing ends. The gate goes on with what it answers itself; other calls
 *		wait. The next process that connects to the adoption socket is the
 *		supervisor, if it is root and lives in the host's namespace, where no
 *		program of the container is. It gets the listener and the container's
 *		namespace with the greeting.
 */
#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "caller.h"
#include "gate.h"
#include "messages.h"
#include "orders.h"
#include "pending.h"
#include "stats.h"
#include "waiting.h"
#include "watchdog.h"

static bool gate_hung_up(void)
{
	return gate_has(gate.control, POLLHUP | POLLERR | POLLNVAL);
}

/* A supervisor has to receive its answers. If it does not, it waits for itself. */
static void gate_done(const struct gate_order *order, int error)
{
	const struct gate_request done = {
		.version = GATE_VERSION, .call = GATE_DONE, .id = order->tag, .number = error};

	(void)send(gate.control, &done, sizeof(done), MSG_NOSIGNAL);
}

static void gate_carry_out(struct gate_message *m)
{
	struct gate_order order;
	int error = gate_order_parse(m->bytes, m->length, m->count, &order);

	if (error == 0) {
		switch (order.op) {
		case GATE_ORDER_SET:
			error = gate_order_set(gate.board, &order);
			break;
		case GATE_ORDER_RULES:
			error = gate_order_rules(gate.board, m->files[0], order.value);
			break;
		case GATE_ORDER_STATS:
			(void)gate_say_stats(gate.board, gate.control, order.tag, 0);
			return;
		case GATE_ORDER_MEMORY:
			gate_memory_came(order.tag, order.word, m->files[0]);
			m->count = 0;
			return;
		case GATE_ORDER_NAME:
			gate_name_came(order.tag, order.value);
			return;
		case GATE_ORDER_END:
			_exit(0);
		default:
			error = ENOSYS;
		}
	}
	gate_done(&order, error);
}

static void gate_left(void)
{
	gate_supervisor_left();
	/* Nobody is there to receive reports of decisions. */
	atomic_store(&gate.board->traced, 0);
	atomic_store(&gate.board->names_peers, 0);
	if (gate.kill >= 0 && write(gate.kill, "1", 1) < 0)
		_exit(1);
}

static void gate_listen_to_supervisor(void)
{
	struct gate_message m;

	if (gate_receive(gate.control, &m, 0) && (m.length > 0 || m.count > 0 || !gate_hung_up())) {
		gate_carry_out(&m);
		gate_close_files(&m);
	} else if (gate_hung_up()) {
		gate_left();
	}
}

/* Whether a process is in our network namespace. */
static bool gate_shares_namespace(pid_t pid)
{
	char path[sizeof("/proc/4294967295/ns/net")];
	struct stat theirs, ours;

	snprintf(path, sizeof(path), "/proc/%u/ns/net", (unsigned int)pid);
	return stat(path, &theirs) == 0 && stat("/proc/self/ns/net", &ours) == 0 &&
	       theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
}

/* Whether the process that has connected may supervise. A process that has died since may not. */
static bool gate_may_supervise(int file)
{
	struct ucred peer = {0};
	socklen_t length = sizeof(peer);

	return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0 &&
	       peer.uid == 0 && gate_shares_namespace(peer.pid);
}

static void gate_refuse(int file, uint32_t why)
{
	const struct gate_request no = {.version = GATE_VERSION, .call = why};

	(void)send(file, &no, sizeof(no), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void gate_accept_supervisor(void)
{
	int file = accept4(gate.adopt_socket, NULL, NULL, SOCK_CLOEXEC);

	if (file < 0)
		return;
	/* The former supervisor may have gone since the last look. */
	while (gate_supervisor_is_there() && gate_hung_up())
		gate_listen_to_supervisor();
	if (!gate_may_supervise(file))
		gate_refuse(file, GATE_REFUSED);
	else if (gate_supervisor_is_there())
		gate_refuse(file, GATE_TAKEN);
	else
		gate_supervisor_came(file);
	close(file);
}

_Noreturn void gate_converse(void)
{
	for (;;) {
		bool there = gate_supervisor_is_there();
		struct pollfd p[] = {
			{.fd = there ? gate.control : -1,
			 .events = POLLIN | (there && gate_pending_any_due() ? POLLOUT : 0)},
			{.fd = gate.adopt_socket, .events = POLLIN},
			{.fd = gate_pending_event(), .events = POLLIN},
			{.fd = gate.listener}, /* only for its end */
		};
		eventfd_t events;

		if (poll(p, sizeof(p) / sizeof(*p), gate_watch()) < 0)
			continue;
		if (p[3].revents & POLLHUP)
			gate_end();
		if (p[2].revents)
			eventfd_read(gate_pending_event(), &events);
		if (p[0].revents & POLLOUT)
			gate_pending_send();
		if (p[0].revents & ~POLLOUT)
			gate_listen_to_supervisor();
		if (p[1].revents)
			gate_accept_supervisor();
	}
}
