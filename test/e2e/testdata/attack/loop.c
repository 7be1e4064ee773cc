// SPDX-License-Identifier: Apache-2.0
/*
 * A container's own loopback: who gets in.
 *
 * "loop-serve SERVER..." has servers: tcp/ADDR:PORT, udp/ADDR:PORT, or unbound/ADDR:PORT, which
 * listens without bind(2). It says what comes ("accepted: SERVER", "heard: SERVER TEXT"),
 * answers it, and obeys the lines of
 * its standard input:
 *   own TEXT    a new client of each server says TEXT; "round TEXT: N failed" when all are done
 *   close N     closes server N; "closed: N"
 *   open N      opens it again; "opened: " and what came of it
 *   call N      a client connects to its address; "called: " and what came of it
 * A UDP socket that has asked all UDP servers says what else comes to it ("ear: TEXT").
 *
 * All servers share their ports with who wants it (SO_REUSEADDR, SO_REUSEPORT).
 *
 * "loop-thief SERVER..." has such servers as well, where it can.
 *
 * "loop-knock SOURCE TARGET..." is who wants to get in: from SOURCE, or "-", it connects or sends
 * to each TARGET (tcp/... or udp/...) and says "intruder" to who answers. It says how each went and
 * goes on until its standard input ends. All is sent from one CPU, so that it arrives in order.
 * SOURCE may be "priority:N" instead, what SO_PRIORITY gives its packets.
 */
#include "attack.h"

#include <poll.h>
#include <sched.h>

enum {
	LOOP_FREE,
	LOOP_STDIN,
	LOOP_LISTENER,
	LOOP_CONN,
	LOOP_UDP,
	LOOP_EAR,
	LOOP_CLIENT,
	LOOP_DIALLING
};

#define LOOP_MAX 4096

static struct pollfd loop_polled[LOOP_MAX];
static struct {
	int kind;
	int server; /* of a client */
} loop_files[LOOP_MAX];
static int loop_count;

static struct {
	struct attack_addr at;
	int type;
	bool unbound;
	int fd;
} loop_servers[1024];
static int loop_server_count, loop_waiting, loop_failed;
static char loop_round[64];
static unsigned loop_priority;

static void loop_add(int fd, int kind, int server)
{
	int i = 0;

	while (i < loop_count && loop_files[i].kind != LOOP_FREE)
		i++;
	if (i == LOOP_MAX)
		attack_die("too many files");
	if (i == loop_count)
		loop_count++;
	loop_polled[i] =
		(struct pollfd){.fd = fd, .events = kind == LOOP_DIALLING ? POLLOUT : POLLIN};
	loop_files[i].kind = kind;
	loop_files[i].server = server;
}

static void loop_close(int i)
{
	close(loop_polled[i].fd);
	loop_polled[i].fd = -1;
	loop_files[i].kind = LOOP_FREE;
}

/* "tcp/ADDR:PORT" and so on. */
static struct attack_addr loop_address(const char *text, int *type, bool *unbound)
{
	const char *slash = strchr(text, '/');
	struct attack_addr a;

	if (slash == NULL)
		attack_die(text);
	a = attack_addr(slash + 1);
	a.text = text;
	*type = text[0] == 'u' && text[1] == 'd' ? SOCK_DGRAM : SOCK_STREAM;
	*unbound = text[0] == 'u' && text[1] == 'n';
	return a;
}

/* Opens a server. Afterwards its address has the port that it got. */
static int loop_open(int n)
{
	struct attack_addr *a = &loop_servers[n].at;
	int fd = socket(a->sa.sa_family, loop_servers[n].type | SOCK_CLOEXEC, 0), one = 1;
	socklen_t len = a->len;

	attack_need("make socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if ((!loop_servers[n].unbound && bind(fd, &a->sa, a->len) < 0) ||
	    (loop_servers[n].type == SOCK_STREAM && listen(fd, 1) < 0)) {
		close(fd);
		return -1;
	}
	attack_need("name", getsockname(fd, &a->sa, &len));
	loop_servers[n].fd = fd;
	loop_add(fd, loop_servers[n].type == SOCK_STREAM ? LOOP_LISTENER : LOOP_UDP, n);
	return 0;
}

/* The address at which a client calls a server: wildcards mean the loopback. */
static struct attack_addr loop_to(int n)
{
	struct attack_addr a = loop_servers[n].at;

	if (a.sa.sa_family == AF_INET && a.in.sin_addr.s_addr == INADDR_ANY)
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else if (a.sa.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a.in6.sin6_addr))
		a.in6.sin6_addr = in6addr_loopback;
	return a;
}

/* A client of the round is done: it has its answer, or an error. */
static void loop_done(long result, int server)
{
	if (result < 0)
		attack_say(loop_servers[server].at.text, result);
	loop_failed += result < 0;
	if (--loop_waiting == 0)
		attack_note("round", "%s: %d failed", loop_round, loop_failed);
}

static void loop_own(const char *text)
{
	snprintf(loop_round, sizeof(loop_round), "%s", text);
	loop_waiting = loop_server_count;
	loop_failed = 0;
	for (int n = 0; n < loop_server_count; n++) {
		struct attack_addr to = loop_to(n);
		int fd = socket(to.sa.sa_family, loop_servers[n].type | SOCK_NONBLOCK, 0);
		bool udp = loop_servers[n].type == SOCK_DGRAM;
		long result = udp ? sendto(fd, text, strlen(text), 0, &to.sa, to.len)
				  : connect(fd, &to.sa, to.len);

		if (result >= 0 || errno == EINPROGRESS) {
			loop_add(fd, udp ? LOOP_CLIENT : LOOP_DIALLING, n);
			continue;
		}
		loop_done(-1, n);
		close(fd);
	}
}

static void loop_call(int n)
{
	struct attack_addr to = loop_to(n);
	int fd = attack_socket(to.sa.sa_family, loop_servers[n].type);
	long result = connect(fd, &to.sa, to.len);

	if (result == 0 && loop_servers[n].type == SOCK_DGRAM) {
		send(fd, "call", 4, 0);
		result = recv(fd, &(char){0}, 1, 0);
	}
	attack_say("called", result);
	close(fd);
}

static void loop_obey(char *line)
{
	int n = atoi(line + strcspn(line, " ") + 1);

	line[strcspn(line, "\n")] = '\0';
	if (strncmp(line, "own ", 4) == 0)
		loop_own(line + 4);
	if (strncmp(line, "open ", 5) == 0)
		attack_say("opened", loop_open(n));
	if (strncmp(line, "call ", 5) == 0)
		loop_call(n);
	if (strncmp(line, "close ", 6) != 0)
		return;
	for (int i = 0; i < loop_count; i++)
		if (loop_files[i].kind != LOOP_FREE && loop_polled[i].fd == loop_servers[n].fd)
			loop_close(i);
	attack_note("closed", "%d", n);
}

static void loop_dialled(int i)
{
	int error = 0, server = loop_files[i].server;
	socklen_t len = sizeof(error);

	getsockopt(loop_polled[i].fd, SOL_SOCKET, SO_ERROR, &error, &len);
	if (error != 0) {
		loop_close(i);
		errno = error;
		loop_done(-1, server);
		return;
	}
	attack_say(loop_servers[server].at.text, 0);
	send(loop_polled[i].fd, loop_round, strlen(loop_round), MSG_NOSIGNAL);
	loop_files[i].kind = LOOP_CLIENT;
	loop_polled[i].events = POLLIN;
}

/* Something has come by a file. */
static void loop_came(int i)
{
	int fd = loop_polled[i].fd, kind = loop_files[i].kind;
	struct sockaddr_in6 from;
	socklen_t len = sizeof(from);
	char text[128];
	ssize_t n;

	if (kind == LOOP_LISTENER) {
		fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			attack_note("accepted", "%s", loop_servers[loop_files[i].server].at.text);
			loop_add(fd, LOOP_CONN, loop_files[i].server);
		}
		return;
	}
	if (kind == LOOP_DIALLING) {
		loop_dialled(i);
		return;
	}
	n = recvfrom(fd, text, sizeof(text) - 1, MSG_DONTWAIT, (struct sockaddr *)&from, &len);
	text[n > 0 ? n : 0] = '\0';
	if (n > 0 && kind == LOOP_EAR)
		attack_note("ear", "%s", text);
	else if (n > 0 && kind != LOOP_CLIENT)
		attack_note("heard", "%s %s", loop_servers[loop_files[i].server].at.text, text);
	if (n > 0 && kind == LOOP_UDP)
		sendto(fd, "answer", 6, 0, (struct sockaddr *)&from, len);
	if (n > 0 && kind == LOOP_CONN)
		send(fd, "answer", 6, MSG_NOSIGNAL);
	if (kind == LOOP_CLIENT || (n <= 0 && kind == LOOP_CONN))
		loop_close(i);
	if (n == 0)
		errno = ECONNRESET;
	if (kind == LOOP_CLIENT)
		loop_done(n > 0 ? 0 : -1, loop_files[i].server);
}

/* Serves until standard input ends. */
static int loop_run(void (*obey)(char *))
{
	char line[128];

	setvbuf(stdin, NULL, _IONBF, 0);
	loop_add(STDIN_FILENO, LOOP_STDIN, 0);
	for (;;) {
		attack_need("poll", poll(loop_polled, (nfds_t)loop_count, -1));
		for (int i = 0; i < loop_count; i++) {
			if (loop_polled[i].fd < 0 || loop_polled[i].revents == 0)
				continue;
			if (loop_files[i].kind != LOOP_STDIN)
				loop_came(i);
			else if (fgets(line, sizeof(line), stdin) == NULL)
				return 0;
			else
				obey(line);
		}
	}
}

static int loop_serve(int argc, char **argv)
{
	int ear = -1;

	for (int n = 0; n < argc; n++) {
		loop_servers[n].at =
			loop_address(argv[n], &loop_servers[n].type, &loop_servers[n].unbound);
		loop_server_count++;
		attack_need(argv[n], loop_open(n));
		attack_note("at", "%s %d", argv[n], ntohs(loop_servers[n].at.in.sin_port));
		if (loop_servers[n].type == SOCK_DGRAM &&
		    loop_servers[n].at.sa.sa_family == AF_INET) {
			struct attack_addr to = loop_to(n);

			ear = ear < 0 ? attack_socket(AF_INET, SOCK_DGRAM) : ear;
			attack_need("ask", sendto(ear, "own ear", 7, 0, &to.sa, to.len));
		}
	}
	if (ear >= 0)
		loop_add(ear, LOOP_EAR, 0);
	attack_note("ready", "ok");
	return loop_run(loop_obey);
}

static int loop_thief(int argc, char **argv)
{
	for (int n = 0; n < argc; n++) {
		loop_servers[n].at =
			loop_address(argv[n], &loop_servers[n].type, &loop_servers[n].unbound);
		attack_say(argv[n], loop_open(n));
	}
	attack_note("ready", "ok");
	return loop_run(loop_obey);
}

/* One attempt; -2 if the kernel goes on with it. */
static long loop_attempt(const struct attack_addr *source, struct attack_addr *to, int type,
			 int index)
{
	int fd = socket(to->sa.sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

	attack_need("make socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (loop_priority != 0)
		attack_need("priority", setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &loop_priority,
						   sizeof(loop_priority)));
	if (source != NULL && source->sa.sa_family == to->sa.sa_family &&
	    bind(fd, &source->sa, source->len) < 0) {
		close(fd);
		return -1;
	}
	loop_servers[index].at = *to;
	if (type == SOCK_DGRAM) {
		long sent = sendto(fd, "intruder", 8, 0, &to->sa, to->len);

		close(fd);
		return sent;
	}
	if (connect(fd, &to->sa, to->len) < 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	loop_add(fd, LOOP_DIALLING, index);
	return -2;
}

static void loop_ignore(char *line)
{
	(void)line;
}

static int loop_knock(int argc, char **argv)
{
	struct attack_addr source;
	bool bound = strcmp(argv[0], "-") != 0, unbound;
	int type;

	if (sscanf(argv[0], "priority:%u", &loop_priority) == 1)
		bound = false;
	if (bound)
		source = attack_addr(argv[0]);
	if (argc > (int)(sizeof(loop_servers) / sizeof(loop_servers[0])))
		attack_die("too many targets");
	strcpy(loop_round, "intruder");
	loop_waiting = LOOP_MAX; /* a round that does not end */
	attack_pin();
	for (int i = 1; i < argc; i++) {
		struct attack_addr to = loop_address(argv[i], &type, &unbound);
		long result = loop_attempt(bound ? &source : NULL, &to, type, i - 1);

		if (result != -2)
			attack_say(argv[i], result);
	}
	attack_note("knocked", "ok");
	return loop_run(loop_ignore);
}

const struct attack_case loop_cases[] = {
	{"loop-serve", loop_serve},
	{"loop-knock", loop_knock},
	{"loop-thief", loop_thief},
	{0},
};
