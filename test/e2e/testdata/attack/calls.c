// SPDX-License-Identifier: Apache-2.0
/* What the calls that a shim replaces have to leave as it was. */
#include "attack.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>

static struct attack_addr calls_to;

/* "errno TO": a call that succeeds does not touch it. */
static int calls_errno(int argc, char **argv)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	int changed = 0;

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < 60; i++) {
		int fd;

		errno = 77;
		fd = socket(AF_INET, i % 2 ? SOCK_STREAM : SOCK_DGRAM, 0);
		changed += errno != 77 || fd < 0;
		errno = 77;
		if (i % 3 == 0)
			changed +=
				bind(fd, (struct sockaddr *)&any, sizeof(any)) != 0 || errno != 77;
		errno = 77;
		changed += connect(fd, &calls_to.sa, calls_to.len) != 0 || errno != 77;
		close(fd);
	}
	attack_note("changed", "%d", changed);
	return 0;
}

/* Two pages, of which the second is not there. */
static char *calls_edge(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	attack_need("map pages", pages == MAP_FAILED ? -1 : 0);
	attack_need("unmap page", munmap(pages + 4096, 4096));
	return pages + 4096;
}

static void calls_at(const char *where, const void *at, int length)
{
	char step[64];

	for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
		int fd = socket(AF_INET, type, 0);

		snprintf(step, sizeof(step), "connect %d %s %d", type, where, length);
		attack_say(step, connect(fd, at, (socklen_t)length));
		close(fd);
	}
}

/* "pointers TO": bad ones, and good ones in odd places. */
static int calls_pointers(int argc, char **argv)
{
	static const int lengths[] = {0, 1, 2, 15, 16, 17, 27, 28, 29, 110, 128, 129, -1};
	char *end, *none, step[32];

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < 4; i++)
		calls_at("warm", &calls_to.sa, (int)calls_to.len);
	end = calls_edge();
	none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		int n = lengths[i];

		calls_at("NULL", NULL, n);
		calls_at("(void *)1", (void *)1, n);
		calls_at("PROT_NONE", none, n);
		calls_at("kernel", (void *)-4096, n);
		calls_at("top", (void *)-1, n);
		calls_at("noncanonical", (void *)(1ul << 62), n);
		calls_at("end", end - 8, n);
		memcpy(end - 16, &calls_to.in, 16);
		calls_at("IPv4 at end", end - 16, n);
		if (n >= 16 && n <= 128) {
			memset(end - n, 0, (size_t)n);
			memcpy(end - n, &calls_to.in, 16);
			calls_at("longer at end", end - n, n);
		}
	}
	for (int offset = 0; offset < 40; offset++) {
		memcpy(end - 16 - offset, &calls_to.in, 16);
		snprintf(step, sizeof(step), "offset %d", offset);
		calls_at(step, end - 16 - offset, 16);
	}
	calls_at("after the end", end - 15, 16);
	return 0;
}

/* "call-signals TO": handlers that make and connect sockets while their thread does. */
static volatile sig_atomic_t calls_handled, calls_failed;
static uint64_t calls_cookies[20000];
static atomic_int calls_count;

static void calls_once(void)
{
	int saved = errno, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint64_t cookie = attack_cookie(fd);
	int at = atomic_fetch_add(&calls_count, 1);

	if (cookie == 0 || connect(fd, &calls_to.sa, calls_to.len) != 0)
		calls_failed++;
	if (at < 20000)
		calls_cookies[at] = cookie;
	close(fd);
	errno = saved;
}

static void calls_handle(int sig)
{
	(void)sig;
	calls_handled++;
	calls_once();
}

static int calls_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int calls_signals(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = calls_handle, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 150}, {0, 150}}, off = {{0, 0}, {0, 0}};
	int count, twice = 0;

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (atomic_load(&calls_count) < 10000 || calls_handled < 500)
		calls_once();
	setitimer(ITIMER_REAL, &off, NULL);
	count = atomic_load(&calls_count) < 20000 ? atomic_load(&calls_count) : 20000;
	qsort(calls_cookies, (size_t)count, sizeof(calls_cookies[0]), calls_compare);
	for (int i = 1; i < count; i++)
		twice += calls_cookies[i] == calls_cookies[i - 1];
	attack_note("failed", "%d", (int)calls_failed);
	attack_note("twice", "%d", twice);
	return 0;
}

/*
 * "longjmp TO": a handler that never returns, in the middle of everything. The
 * sockets whose numbers nobody got are left, with a shim and without.
 */
static sigjmp_buf calls_back;

static void calls_jump(int sig)
{
	(void)sig;
	siglongjmp(calls_back, 1);
}

/* Sockets of the process and of its children, afterwards. */
static int calls_after(void)
{
	int failed = 0, status;

	for (int i = 0; i < 20; i++) {
		int before = calls_failed;

		pid_t pid;

		calls_once();
		pid = fork();
		if (pid == 0) {
			calls_once();
			_exit(calls_failed > before);
		}
		failed += calls_failed > before || waitpid(pid, &status, 0) != pid || status != 0;
	}
	return failed;
}

static int calls_longjmp(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = calls_jump};
	struct itimerval soon = {{0, 0}, {0, 60}}, off = {{0, 0}, {0, 0}};
	volatile int jumps = 0;

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	sigaction(SIGALRM, &act, NULL);
	if (sigsetjmp(calls_back, 1) != 0)
		jumps++;
	close_range(3, 200, 0);
	if (jumps < 2000) {
		soon.it_value.tv_usec = 20 + jumps % 150;
		setitimer(ITIMER_REAL, &soon, NULL);
		for (;;)
			close(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	}
	setitimer(ITIMER_REAL, &off, NULL);
	attack_note("jumps", "%d", jumps);
	attack_note("failed", "%d", calls_after());
	return 0;
}

/* "call-threads TO": that all make and connect sockets; none is made twice. */
static void *calls_thread(void *arg)
{
	for (int i = 0; i < 2000; i++)
		calls_once();
	return arg;
}

static int calls_threads(int argc, char **argv)
{
	pthread_t threads[8];
	int twice = 0;

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, calls_thread, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	qsort(calls_cookies, 16000, sizeof(calls_cookies[0]), calls_compare);
	for (int i = 1; i < 16000; i++)
		twice += calls_cookies[i] == calls_cookies[i - 1];
	attack_note("failed", "%d", (int)calls_failed);
	attack_note("twice", "%d", twice);
	return 0;
}

/* "cancel TO": a thread that is cancelled in connect(2) cleans up. */
static struct {
	atomic_int fd;
	atomic_bool cleaned, returned;
} calls_cancel;

static void calls_clean(void *arg)
{
	(void)arg;
	atomic_store(&calls_cancel.cleaned, true);
}

static void *calls_blocked(void *arg)
{
	pthread_cleanup_push(calls_clean, NULL);
	connect(atomic_load(&calls_cancel.fd), &calls_to.sa, calls_to.len);
	atomic_store(&calls_cancel.returned, true);
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return arg;
}

static bool calls_connecting(int fd)
{
	struct tcp_info info;
	socklen_t length = sizeof(info);

	attack_need("ask for state", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
	return info.tcpi_state == TCP_SYN_SENT;
}

static int calls_cancelled(int argc, char **argv)
{
	pthread_t thread;
	void *result;

	calls_to = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < 20; i++) {
		atomic_store(&calls_cancel.cleaned, false);
		atomic_store(&calls_cancel.returned, false);
		atomic_store(&calls_cancel.fd, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		pthread_create(&thread, NULL, calls_blocked, NULL);
		while (!calls_connecting(atomic_load(&calls_cancel.fd)) &&
		       !atomic_load(&calls_cancel.returned))
			sched_yield();
		pthread_cancel(thread);
		pthread_join(thread, &result);
		attack_note("cancelled", "%s, %s, %s", result == PTHREAD_CANCELED ? "yes" : "no",
			    atomic_load(&calls_cancel.cleaned) ? "clean" : "unclean",
			    atomic_load(&calls_cancel.returned) ? "too late" : "in connect");
		close(atomic_load(&calls_cancel.fd));
	}
	return 0;
}

/* "elsewhere": no socket of the host's in a namespace of its own. */
static void calls_elsewhere_check(const char *step, uint64_t host)
{
	int of_host = 0;

	for (int i = 0; i < 40; i++)
		for (int kind = 0; kind < 4; kind++)
			of_host += attack_netns(attack_socket(kind < 2 ? AF_INET : AF_INET6,
							      kind % 2 ? SOCK_STREAM
								       : SOCK_DGRAM)) == host;
	attack_note(step, "%d", of_host);
}

static int calls_elsewhere(int argc, char **argv)
{
	uint64_t host = attack_netns(attack_socket(AF_INET, SOCK_STREAM));
	int ready[2], hold[2], pidfd;
	char byte = 0;
	pid_t pid;

	(void)argc, (void)argv;
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	attack_need("make pipe", pipe(ready));
	attack_need("make pipe", pipe(hold));
	pid = fork();
	if (pid == 0) {
		attack_warm();
		attack_need("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNET));
		calls_elsewhere_check("unshare", host);
		/* A child of it, and a program that it executes, are there too. */
		if (fork() == 0) {
			calls_elsewhere_check("its child", host);
			_exit(0);
		}
		wait(NULL);
		attack_need("say so", write(ready[1], &byte, 1));
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	attack_need("wait", read(ready[0], &byte, 1));
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fork() == 0) {
		attack_warm();
		attack_need("setns", setns(pidfd, CLONE_NEWUSER | CLONE_NEWNET));
		calls_elsewhere_check("setns", host);
		_exit(0);
	}
	close(hold[1]);
	while (wait(NULL) > 0)
		;
	attack_note("at home", "%s",
		    attack_netns(attack_socket(AF_INET, SOCK_STREAM)) == host ? "host's" : "own");
	return 0;
}

/* "sockets N": makes and uses sockets, and says whether there is a shim at work. */
static int calls_sockets(int argc, char **argv)
{
	int bad = 0;

	calls_to = attack_addr(argv[argc - 1]);
	for (int i = 0; i < 20; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		bad += connect(fd, &calls_to.sa, calls_to.len) != 0;
		close(fd);
	}
	attack_note("failed", "%d", bad);
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	return 0;
}

const struct attack_case calls_cases[] = {
	{"longjmp", calls_longjmp},
	{"errno", calls_errno},
	{"pointers", calls_pointers},
	{"call-signals", calls_signals},
	{"call-threads", calls_threads},
	{"cancel", calls_cancelled},
	{"elsewhere", calls_elsewhere},
	{"sockets", calls_sockets},
	{0},
};
