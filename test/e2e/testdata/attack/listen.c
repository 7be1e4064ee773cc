// SPDX-License-Identifier: Apache-2.0
/* Ways to get a port of the host that no rule gives. */
#include "attack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static const struct sockaddr_in listen_any = {.sin_family = AF_INET};

static int listen_bind_any(int fd)
{
	return bind(fd, (const struct sockaddr *)&listen_any, sizeof(listen_any));
}

static int listen_port(int fd)
{
	struct sockaddr_in6 a = {0};
	socklen_t len = sizeof(a);

	attack_need("getsockname", getsockname(fd, (struct sockaddr *)&a, &len));
	return ntohs(a.sin6_port);
}

/*
 * "accepted AT": listens where it may, accepts one connection, disconnects the
 * accepted socket and listens on that.
 */
static int listen_accepted(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[argc - 1]);
	int one = 1, fd = socket(at.sa.sa_family, SOCK_STREAM, 0), conn;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	attack_need("bind", bind(fd, &at.sa, at.len));
	attack_need("listen", listen(fd, 10));
	attack_note("ready", "ok");
	conn = accept(fd, NULL, NULL);
	attack_need("accept", conn);
	attack_say("disconnect", attack_unspec(conn));
	attack_say("listen", listen(conn, 10));
	attack_hold();
	return 0;
}

/* "relisten AT...": the same with listeners, each after it was disconnected. */
static int listen_again(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		struct attack_addr at = attack_addr(argv[i]);
		int fd = socket(at.sa.sa_family, SOCK_STREAM, 0);

		attack_say("bind", bind(fd, &at.sa, at.len));
		attack_say("listen", listen(fd, 10));
		attack_say("disconnect", attack_unspec(fd));
		attack_say("bind again", listen_bind_any(fd));
		attack_say("listen again", listen(fd, 10));
	}
	attack_hold();
	return 0;
}

/*
 * "borrow ALLOWED PORT...": sockets that are bound in the container's own
 * namespace first and then connected to where only the host's get.
 */
static int listen_borrow(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[0]);

	for (int i = 1; i < argc; i++) {
		for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
			struct attack_addr at = attack_addr(argv[i]);
			char step[80];
			int fd = attack_socket(at.sa.sa_family, type);

			snprintf(step, sizeof(step), "%s %s", type == SOCK_STREAM ? "tcp" : "udp",
				 argv[i]);
			if (attack_say(step, bind(fd, &at.sa, at.len)) < 0)
				continue;
			attack_say("connect", connect(fd, &to.sa, to.len));
			if (type == SOCK_DGRAM)
				attack_say("disconnect", attack_unspec(fd));
		}
	}
	attack_hold();
	return 0;
}

/* "bind AT...": with every option that could help, then waits. */
static int listen_bind(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
			struct attack_addr at = attack_addr(argv[i]);
			int one = 1, fd = attack_socket(at.sa.sa_family, type);
			char step[80];

			snprintf(step, sizeof(step), "%s %s", type == SOCK_STREAM ? "tcp" : "udp",
				 argv[i]);
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
			setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
			setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof(one));
			setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &one, sizeof(one));
			attack_say(step, bind(fd, &at.sa, at.len));
			if (type == SOCK_STREAM)
				listen(fd, 10);
		}
	}
	attack_hold();
	return 0;
}

/*
 * "three AT SECONDS": three threads at once on one socket: one binds it to any
 * port, one to where it may listen, and one listens.
 */
enum { LISTEN_THREADS = 6 };

static struct {
	struct attack_addr at;
	atomic_int fd;
	pthread_barrier_t begin, end;
} listen_race;

static void *listen_racer(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	int role = (int)(uintptr_t)arg;

	for (;;) {
		pthread_barrier_wait(&listen_race.begin);
		for (volatile int pause = rand_r(&seed) % 400; pause > 0; pause--)
			;
		if (role == 0)
			listen_bind_any(listen_race.fd);
		else if (role < 4)
			bind(listen_race.fd, &listen_race.at.sa, listen_race.at.len);
		for (int i = 0; i < 1000 && role >= 4 && listen_port(listen_race.fd) == 0; i++)
			;
		for (int i = 0; i < 4 && role >= 4; i++)
			listen(listen_race.fd, 5);
		pthread_barrier_wait(&listen_race.end);
	}
	return NULL;
}

static int listen_three(int argc, char **argv)
{
	int one = 1, found = 0, rounds = 0;
	uint64_t host = attack_netns(socket(AF_INET, SOCK_STREAM, 0));
	pthread_t thread;

	listen_race.at = attack_addr(argv[0]);
	pthread_barrier_init(&listen_race.begin, NULL, LISTEN_THREADS + 1);
	pthread_barrier_init(&listen_race.end, NULL, LISTEN_THREADS + 1);
	for (uintptr_t i = 0; i < LISTEN_THREADS; i++)
		pthread_create(&thread, NULL, listen_racer, (void *)i);
	for (; !attack_late(atoi(argv[argc - 1])) && found == 0; rounds++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		listen_race.fd = fd;
		pthread_barrier_wait(&listen_race.begin);
		pthread_barrier_wait(&listen_race.end);
		if (attack_listens(fd) && attack_netns(fd) == host &&
		    listen_port(fd) != ntohs(listen_race.at.in.sin_port))
			found++; /* is left open for the test to find */
		else
			close(fd);
	}
	attack_note("rounds", "%d", rounds);
	attack_hold();
	_exit(0);
}

/*
 * "swapped COUNT": puts a TCP socket of the host in the place of a unix one
 * while that listens, until COUNT of them listen on the host. Each has a port,
 * which is told in time for an accomplice to flood it. The last one stays open,
 * and so do all connections. When standard input ends, it says how many of
 * these have heard something.
 */
enum { LISTEN_KEPT = 256 };

static struct {
	int unix_socket, number;
	atomic_int host;
	atomic_bool over;
} listen_swap;

static void *listen_swapper(void *arg)
{
	while (!atomic_load(&listen_swap.over)) {
		dup2(atomic_load(&listen_swap.host), listen_swap.number);
		dup2(listen_swap.unix_socket, listen_swap.number);
	}
	return arg;
}

static int listen_host_socket(void)
{
	uint32_t ports = 40000 | 40000u << 16;
	int one = 1, fd = attack_socket(AF_INET, SOCK_STREAM);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &ports, sizeof(ports));
	if (listen_bind_any(fd) < 0) { /* the last one's connection lingers */
		ports = 0;
		setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &ports, sizeof(ports));
		attack_need("bind to any port", listen_bind_any(fd));
	}
	attack_note("port", "%d", listen_port(fd));
	return fd;
}

/* How many of some connections something has come by. */
static int listen_heard(const int *conns, int count)
{
	int heard = 0;
	char word[8];

	for (int i = 0; i < count; i++)
		heard += recv(conns[i], word, sizeof(word), MSG_DONTWAIT) > 0;
	return heard;
}

static int listen_swapped(int argc, char **argv)
{
	int won = 0, accepted = 0, wanted = atoi(argv[argc - 1]), kept[LISTEN_KEPT];
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	uint64_t host;
	pthread_t thread;

	listen_swap.number = 100;
	listen_swap.unix_socket = socket(AF_UNIX, SOCK_STREAM, 0);
	attack_need("bind unix socket", bind(listen_swap.unix_socket, (struct sockaddr *)&name, 2));
	listen_swap.host = listen_host_socket();
	host = attack_netns(listen_swap.host);
	dup2(listen_swap.unix_socket, listen_swap.number);
	pthread_create(&thread, NULL, listen_swapper, NULL);
	for (;;) {
		int old = listen_swap.host, conn = -1;

		listen(listen_swap.number, 50);
		if (!attack_listens(old))
			continue;
		if (attack_netns(old) == host) {
			usleep(500); /* the accomplice may need it */
			fcntl(old, F_SETFL, O_NONBLOCK);
			if (accepted < LISTEN_KEPT)
				conn = accept(old, NULL, NULL);
			if (conn >= 0) {
				send(conn, "out", 3, MSG_NOSIGNAL);
				kept[accepted++] = conn;
			}
			if (++won == wanted)
				break;
		}
		atomic_store(&listen_swap.host, listen_host_socket());
		close(old);
	}
	atomic_store(&listen_swap.over, true);
	attack_hold();
	attack_note("accepted", "%d", accepted);
	attack_note("heard", "%d", listen_heard(kept, accepted));
	_exit(0);
}

/*
 * "flood ADDR": connects to the ports that standard input names, and keeps the
 * connections. At the port 0 it stops and connects to ADDR, from the CPU that all
 * of it came from. When standard input ends, it says how many have heard something.
 */
static atomic_int listen_target = -1;

static void *listen_read_targets(void *arg)
{
	char line[32];

	while (fgets(line, sizeof(line), stdin) != NULL && atoi(line) != 0)
		atomic_store(&listen_target, atoi(line));
	atomic_store(&listen_target, 0);
	return arg;
}

static void listen_follow(const struct attack_addr *to)
{
	int fd = attack_socket(AF_INET, SOCK_STREAM);

	attack_need("connect to what is open", connect(fd, &to->sa, to->len));
	send(fd, "sentinel of the flood", 21, MSG_NOSIGNAL);
	close(fd);
}

static int listen_flood(int argc, char **argv)
{
	struct attack_addr end = attack_addr(argv[argc - 1]), to = end;
	/* Decides nothing: what is not answered is tried again. */
	struct timeval pace = {.tv_usec = 200000};
	struct linger reset = {1, 0};
	int port, count = 0, kept[LISTEN_KEPT];
	pthread_t thread;

	pthread_create(&thread, NULL, listen_read_targets, NULL);
	attack_pin();
	attack_note("ready", "ok");
	while ((port = atomic_load(&listen_target)) != 0) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &pace, sizeof(pace));
		to.in.sin_port = htons((uint16_t)port);
		if (port > 0 && count < LISTEN_KEPT && connect(fd, &to.sa, to.len) == 0) {
			send(fd, "in", 2, MSG_NOSIGNAL);
			kept[count++] = fd;
		} else {
			close(fd);
		}
	}
	pthread_join(thread, NULL);
	listen_follow(&end);
	attack_hold();
	attack_note("connected", "%d", count);
	attack_note("heard", "%d", listen_heard(kept, count));
	return 0;
}

const struct attack_case listen_cases[] = {
	{"accepted", listen_accepted}, {"relisten", listen_again},
	{"borrow", listen_borrow},     {"bind", listen_bind},
	{"three", listen_three},       {"swapped", listen_swapped},
	{"flood", listen_flood},       {0},
};
