// SPDX-License-Identifier: Apache-2.0
/*
 * What the peer is asked to do through its control port. One connection is one
 * request, a line; the peer answers a line:
 *
 *   tcp PORT        dial the asker's address at PORT and echo; "dialled" or
 *                   what failed
 *   udp PORT TEXT   send TEXT to the asker's address at PORT from a new
 *                   socket; the answer it gets, or "silence"
 *   gate            make a listener that answers no SYN; its port. After the
 *                   line "open" it takes connections and echoes.
 */
#include "probe.h"

static char answer[256];

static int peer_ask(int family, const char *request)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC);

	if (probe_connect(fd, probe_peer(family, env.ctl)))
		probe_die("connect to control port");
	if (write(fd, request, strlen(request)) != (ssize_t)strlen(request))
		probe_die("ask peer");
	return fd;
}

static const char *peer_answer(int fd)
{
	size_t got = 0;
	ssize_t n;

	while (!memchr(answer, '\n', got)) {
		n = read(fd, answer + got, sizeof(answer) - 1 - got);
		if (n <= 0)
			probe_die("peer's answer");
		got += n;
	}
	answer[got - 1] = 0;
	return answer;
}

/* Has the peer dial the probe; the connection waits to be accepted then. */
const char *probe_dial(int family, int port)
{
	char request[64];
	int fd;

	snprintf(request, sizeof(request), "tcp %d\n", port);
	fd = peer_ask(family, request);
	peer_answer(fd);
	close(fd);
	return answer;
}

/* Has the peer send a datagram. What it hears in answer is probe_heard's. */
int probe_dial_udp(int family, int port, const char *text)
{
	char request[128];

	snprintf(request, sizeof(request), "udp %d %s\n", port, text);
	return peer_ask(family, request);
}

/* The answer that the peer got to the datagram of probe_dial_udp. */
const char *probe_heard(int asked)
{
	peer_answer(asked);
	close(asked);
	return answer;
}

/* The same once nothing can come any more: the peer waits no longer. */
const char *probe_heard_by_now(int asked)
{
	shutdown(asked, SHUT_WR);
	return probe_heard(asked);
}

/* A port of the peer that does not answer until the gate is opened. */
int probe_gate(int family, int *port)
{
	int fd = peer_ask(family, "gate\n");

	*port = atoi(peer_answer(fd));
	return fd;
}

void probe_gate_open(int gate)
{
	if (write(gate, "open\n", 5) != 5)
		probe_die("open gate");
}
