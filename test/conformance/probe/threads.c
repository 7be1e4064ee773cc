// SPDX-License-Identifier: Apache-2.0
/* Many at once: threads and processes that share a table or only a peer. */
#include "probe.h"

#include <pthread.h>

#define THREADS 50

struct threads_job {
	int family, number, err;
	bool loopback;
	struct probe_addr to;
};

static pthread_barrier_t threads_start;

/* One conversation; the error is of the first call that went wrong. */
static int threads_talk(int family, struct probe_addr to, int number)
{
	char text[32], buf[32] = "";
	int fd = socket(family, SOCK_STREAM, 0), len, err = 0;

	if (fd < 0)
		return errno;
	len = snprintf(text, sizeof(text), "number %d", number);
	if (probe_connect(fd, to) || write(fd, text, len) != len)
		err = errno;
	else if (probe_read(fd, buf, len) != len)
		err = errno;
	else if (memcmp(text, buf, len))
		err = EIO;
	close(fd);
	return err;
}

static void *threads_run(void *arg)
{
	struct threads_job *job = arg;

	pthread_barrier_wait(&threads_start);
	job->err = threads_talk(job->family, job->to, job->number);
	return NULL;
}

static void threads_all(struct threads_job *jobs)
{
	pthread_t t[THREADS];
	int good = 0;

	pthread_barrier_init(&threads_start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&t[i], NULL, threads_run, &jobs[i]))
			probe_die("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < THREADS; i++) {
		good += !jobs[i].err;
		if (jobs[i].err)
			probe_line("thread", "%s", probe_errno(jobs[i].err));
	}
	probe_line("conversations", "%d", good);
	if (good != THREADS)
		probe_fail();
}

static void threads_connect(int family)
{
	struct threads_job jobs[THREADS] = {0};

	for (int i = 0; i < THREADS; i++) {
		jobs[i].family = family;
		jobs[i].number = i;
		jobs[i].to = probe_peer(family, env.tcp);
	}
	threads_all(jobs);
}

static void *threads_serve(void *arg)
{
	int l = *(int *)arg, fd;
	char buf[32];

	while ((fd = accept(l, NULL, NULL)) >= 0) {
		ssize_t n = read(fd, buf, sizeof(buf));

		if (n > 0 && write(fd, buf, n) != n)
			break;
		close(fd);
	}
	return NULL;
}

/* Every other thread turns to the loopback: some sockets change sides. */
static void threads_mixed(int family)
{
	struct threads_job jobs[THREADS] = {0};
	int l = probe_socket(family, SOCK_STREAM);
	pthread_t server;

	if (probe_bind(l, probe_loopback(family, 0)) || listen(l, THREADS))
		probe_die("listen");
	if (pthread_create(&server, NULL, threads_serve, &l))
		probe_die("pthread_create");
	for (int i = 0; i < THREADS; i++) {
		jobs[i].family = family;
		jobs[i].number = i;
		jobs[i].to = i % 2 ? probe_local(l) : probe_peer(family, env.tcp);
	}
	threads_all(jobs);
	shutdown(l, SHUT_RD);
	pthread_join(server, NULL);
}

static void threads_processes(int family)
{
	pid_t pids[16];
	int good = 0, status;

	for (int i = 0; i < 16; i++) {
		pids[i] = probe_fork();
		if (pids[i] == 0)
			_exit(threads_talk(family, probe_peer(family, env.tcp), i));
	}
	for (int i = 0; i < 16; i++)
		good += waitpid(pids[i], &status, 0) == pids[i] && !status;
	probe_line("conversations", "%d", good);
	if (good != 16)
		probe_fail();
}

/* One connection after another on one socket after another. */
static void threads_sequence(int family)
{
	int good = 0;

	for (int i = 0; i < 100; i++)
		good += !threads_talk(family, probe_peer(family, env.tcp), i);
	probe_line("conversations", "%d", good);
	if (good != 100)
		probe_fail();
}

static void *threads_connect_shared(void *arg)
{
	int fd = *(int *)arg;

	return (void *)(long)probe_connect(fd, probe_peer(AF_INET, env.tcp));
}

/* A descriptor made by one thread, connected by another, used by the first. */
static void threads_shared(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	pthread_t t;
	void *rc;

	if (pthread_create(&t, NULL, threads_connect_shared, &fd))
		probe_die("pthread_create");
	pthread_join(t, &rc);
	probe_want("connect", (long)rc, 0);
	probe_echo("echo", fd, "yours");
}

struct threads_reader {
	int fd;
	ssize_t n;
	char buf[16];
};

/* Looks for the answer again and again. One poll without an end would wait on the
 * socket that the descriptor had when the poll began. */
static void *threads_recv(void *arg)
{
	struct threads_reader *r = arg;
	long start = probe_now();

	while (!probe_poll(r->fd, POLLIN, 20))
		if (probe_now() - start > PROBE_PATIENCE)
			return NULL;
	r->n = recv(r->fd, r->buf, sizeof(r->buf), 0);
	return NULL;
}

static void threads_reader_result(struct threads_reader *r)
{
	probe_check("the reader heard it", r->n == 5 && !memcmp(r->buf, "reply", 5));
}

/* A reader that waits on a datagram socket before anything was sent. */
static void threads_reader_connect(int family)
{
	struct threads_reader r = {.fd = probe_socket(family, SOCK_DGRAM)};
	pthread_t t;

	if (pthread_create(&t, NULL, threads_recv, &r))
		probe_die("pthread_create");
	probe_sleep(100);
	probe_want("connect", probe_connect(r.fd, probe_peer(family, env.udp)), 0);
	probe_want("send", send(r.fd, "reply", 5, 0), 0);
	pthread_join(t, NULL);
	threads_reader_result(&r);
}

static void threads_reader_sendto(int family)
{
	struct threads_reader r = {.fd = probe_socket(family, SOCK_DGRAM)};
	struct probe_addr a = probe_peer(family, env.udp);
	pthread_t t;

	if (pthread_create(&t, NULL, threads_recv, &r))
		probe_die("pthread_create");
	probe_sleep(100);
	probe_want("sendto", sendto(r.fd, "reply", 5, 0, &a.sa, a.len), 0);
	pthread_join(t, NULL);
	threads_reader_result(&r);
}

const struct probe_case threads_cases[] = {
	{"threads-connect-v4", threads_connect, AF_INET, 0},
	{"threads-connect-v6", threads_connect, AF_INET6, 0},
	{"threads-mixed", threads_mixed, AF_INET, 0},
	{"threads-processes", threads_processes, AF_INET, 0},
	{"threads-sequence", threads_sequence, AF_INET, 0},
	{"threads-shared", threads_shared, AF_INET, 0},
	{"threads-reader-connect", threads_reader_connect, AF_INET, 0},
	{"threads-reader-sendto", threads_reader_sendto, AF_INET, 0},
	{0},
};
