// SPDX-License-Identifier: Apache-2.0
/*
 * What children have of their parents' sockets. The peer says on one connection,
 * "control", when another has ended: it does when the parent closes it, though
 * there is a child that lives on and does nothing.
 */
#include "attack.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>

/* More than a shim has in advance of a kind. */
enum { FORKS_SOCKETS = 40, FORKS_PATIENCE_MS = 60000, FORKS_THREADS = 3, FORKS_CHILDREN = 300 };

extern char **environ;

static struct attack_addr forks_peer;
static int forks_control;
static pid_t forks_id;				  /* tells the peer what belongs together */
static int forks_hold[2];			  /* children wait until the parent has closed it */
static uint64_t forks_cookies[2 * FORKS_SOCKETS]; /* of the parent and of its child */

static int forks_connect(char kind)
{
	char hello[16];
	int fd = socket(forks_peer.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	attack_need("make socket", fd);
	attack_need("connect", connect(fd, &forks_peer.sa, forks_peer.len));
	if (kind == 'C')
		forks_id = getpid();
	snprintf(hello, sizeof(hello), "%c%08d", kind, (int)forks_id);
	attack_need("say hello", send(fd, hello, 9, MSG_NOSIGNAL));
	if (kind == 'C')
		attack_need("be known", recv(fd, hello, 1, 0));
	return fd;
}

/* Whether the peer has seen the ends of COUNT connections. */
static bool forks_ended(int count, int patience)
{
	struct pollfd p = {.fd = forks_control, .events = POLLIN};
	char bytes[64];

	while (count > 0) {
		ssize_t n = poll(&p, 1, patience) > 0
				    ? read(forks_control, bytes, count < 64 ? (size_t)count : 64)
				    : -1;

		if (n <= 0)
			return false;
		count -= (int)n;
	}
	return true;
}

static void forks_wait(void)
{
	char byte;

	close(forks_hold[1]);
	if (read(forks_hold[0], &byte, 1) < 0)
		_exit(4);
}

static void forks_child(pid_t pid)
{
	attack_need("fork", pid);
	if (pid == 0) {
		forks_wait();
		_exit(0);
	}
}

static void forks_execute(char *const *args)
{
	dup2(forks_hold[0], STDIN_FILENO);
	execv("/proc/self/exe", args);
	_exit(5);
}

static char *forks_idle[] = {"attack", "idle", NULL};

static void forks_spawn(void)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, forks_hold[0], STDIN_FILENO);
	errno = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, forks_idle, environ);
	attack_need("spawn", errno == 0 ? 0 : -1);
}

/* It makes sockets of its own, before it executes. */
static void forks_vfork(void)
{
	if (vfork() == 0) {
		for (int i = 0; i < 3; i++)
			close(socket(AF_INET, SOCK_STREAM, 0));
		forks_execute(forks_idle);
	}
}

static void *forks_in_thread(void *arg)
{
	forks_child(fork());
	return arg;
}

static void forks_make(const char *kind)
{
	pthread_t thread;

	if (strcmp(kind, "fork") == 0) {
		forks_child(fork());
	} else if (strcmp(kind, "_Fork") == 0) {
		forks_child(_Fork());
	} else if (strcmp(kind, "clone") == 0) {
		forks_child((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
	} else if (strcmp(kind, "vfork") == 0) {
		forks_vfork();
	} else if (strcmp(kind, "spawn") == 0) {
		forks_spawn();
	} else if (strcmp(kind, "thread") == 0) {
		pthread_create(&thread, NULL, forks_in_thread, NULL);
		pthread_join(thread, NULL);
	} else if (strcmp(kind, "grandchild") == 0) {
		if (fork() == 0) {
			forks_child(fork());
			_exit(0);
		}
	} else if (strcmp(kind, "exec") == 0) {
		if (fork() == 0)
			forks_execute(forks_idle);
	} else {
		errno = EINVAL;
		attack_die(kind);
	}
}

/*
 * "forks KIND PEER": a child that does nothing keeps no connection of its parent
 * open; whoever came by way of the C library does not.
 */
static int forks_run(int argc, char **argv)
{
	forks_peer = attack_addr(argv[argc - 1]);
	attack_need("make pipe", pipe2(forks_hold, O_CLOEXEC));
	attack_warm();
	forks_control = forks_connect('C');
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	forks_make(argv[0]);
	for (int i = 0; i < FORKS_SOCKETS; i++)
		close(forks_connect('D'));
	attack_note("ended", "%s",
		    forks_ended(FORKS_SOCKETS, FORKS_PATIENCE_MS) ? "all" : "not all");
	close(forks_hold[1]);
	while (wait(NULL) > 0)
		;
	return 0;
}

/*
 * "unknown-child KIND PEER": one whose making no handler is told of lets go of its
 * copies when it first makes a socket.
 */
static int forks_unknown(int argc, char **argv)
{
	char byte;
	int ready[2];

	forks_peer = attack_addr(argv[argc - 1]);
	attack_need("make pipe", pipe2(forks_hold, O_CLOEXEC));
	attack_need("make pipe", pipe2(ready, O_CLOEXEC));
	attack_warm();
	forks_control = forks_connect('C');
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	if ((strcmp(argv[0], "_Fork") == 0 ? _Fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) ==
	    0) {
		forks_wait();
		close(socket(AF_INET, SOCK_STREAM, 0));
		attack_note("parked in child", "%d", attack_parked());
		close(ready[1]);
		for (;;)
			pause();
	}
	close(ready[1]);
	for (int i = 0; i < FORKS_SOCKETS; i++)
		close(forks_connect('D'));
	close(forks_hold[1]);
	if (read(ready[0], &byte, 1) != 0)
		attack_die("wait for child");
	attack_note("ended", "%s",
		    forks_ended(FORKS_SOCKETS, FORKS_PATIENCE_MS) ? "all" : "not all");
	return 0; /* the child is killed with the container */
}

/* "cookies KIND": parent and child make sockets, and none is made twice. */
static void forks_collect(uint64_t *cookies)
{
	for (int i = 0; i < FORKS_SOCKETS; i++)
		cookies[i] = attack_cookie(socket(i % 2 ? AF_INET : AF_INET6, SOCK_STREAM, 0));
}

static int forks_twice(int argc, char **argv)
{
	const size_t half = sizeof(forks_cookies) / 2;
	int channel[2], twice = 0, none = 0;
	pid_t pid;

	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	attack_need("make pipe", pipe(channel));
	if (strcmp(argv[argc - 1], "fork") == 0)
		pid = fork();
	else if (strcmp(argv[argc - 1], "_Fork") == 0)
		pid = _Fork();
	else
		pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	attack_need("fork", pid);
	forks_collect(forks_cookies);
	if (pid == 0)
		_exit(write(channel[1], forks_cookies, half) < 0);
	if (read(channel[0], &forks_cookies[FORKS_SOCKETS], half) != (ssize_t)half)
		attack_die("read cookies");
	for (int i = 0; i < 2 * FORKS_SOCKETS; i++) {
		none += forks_cookies[i] == 0;
		for (int k = 0; k < i; k++)
			twice += forks_cookies[i] == forks_cookies[k];
	}
	attack_note("twice", "%d", twice);
	attack_note("none", "%d", none);
	wait(NULL);
	return 0;
}

/*
 * "fork-storm": children of a process whose threads make sockets all the time
 * have copies of those that these have, one each, and of no others.
 */
static atomic_bool forks_stop;

static void *forks_maker(void *arg)
{
	while (!atomic_load(&forks_stop)) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			attack_note("socket", "%s", strerrorname_np(errno));
		close(fd);
	}
	return arg;
}

static int forks_count(void)
{
	int count = 0;

	for (int fd = 3; fd < 300; fd++)
		count += attack_cookie(fd) != 0;
	return count;
}

static int forks_storm(int argc, char **argv)
{
	pthread_t threads[FORKS_THREADS];
	int most = 0, status;

	(void)argc, (void)argv;
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < FORKS_THREADS; i++)
		pthread_create(&threads[i], NULL, forks_maker, NULL);
	for (int i = 0; i < FORKS_CHILDREN; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(forks_count());
		attack_need("fork", pid);
		if (waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) > most)
			most = WEXITSTATUS(status);
	}
	atomic_store(&forks_stop, true);
	for (int i = 0; i < FORKS_THREADS; i++)
		pthread_join(threads[i], NULL);
	attack_note("sockets of a child", "%s", most <= FORKS_THREADS ? "its parent's" : "others");
	fprintf(stderr, "at most %d\n", most);
	return 0;
}

/*
 * "vfork-sockets PEER": the child of a vfork(2) shares memory with its parent but no
 * descriptors. What it closes is closed.
 */
static int forks_vforked(int argc, char **argv)
{
	uint64_t own;

	forks_peer = attack_addr(argv[argc - 1]);
	attack_warm();
	forks_control = forks_connect('C');
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	if (vfork() == 0) {
		for (int i = 0; i < FORKS_SOCKETS; i++)
			close(forks_connect('D'));
		_exit(0);
	}
	own = attack_cookie(socket(AF_INET, SOCK_STREAM, 0));
	attack_note("socket", "%s", own != 0 ? "ok" : "wrong");
	attack_note("ended", "%s",
		    forks_ended(FORKS_SOCKETS, FORKS_PATIENCE_MS) ? "all" : "not all");
	while (wait(NULL) > 0)
		;
	return 0;
}

/* "idle": what those do that are executed. */
static int forks_idling(int argc, char **argv)
{
	char byte;

	(void)argc, (void)argv;
	return read(STDIN_FILENO, &byte, 1) != 0;
}

/* "daemon PEER": the parent is gone, the daemon does what it did. */
static int forks_daemon(int argc, char **argv)
{
	int said[2];
	char byte;

	forks_peer = attack_addr(argv[argc - 1]);
	attack_warm();
	attack_need("make pipe", pipe(said));
	if (fork() == 0) {
		if (daemon(1, 1) != 0)
			attack_die("daemon");
		forks_control = forks_connect('C');
		for (int i = 0; i < FORKS_SOCKETS; i++)
			close(forks_connect('D'));
		attack_note("ended", "%s",
			    forks_ended(FORKS_SOCKETS, FORKS_PATIENCE_MS) ? "all" : "not all");
		_exit(0);
	}
	close(said[1]);
	if (read(said[0], &byte, 1) != 0)
		attack_die("wait for daemon");
	return 0;
}

/* "system": sockets are what they should be before and after. */
static int forks_system(int argc, char **argv)
{
	(void)argc, (void)argv;
	attack_warm();
	attack_note("system", "%d", system("exit 3"));
	/* Through another program, which gets nothing. */
	attack_note("files", "%d", system("test \"$(ls /proc/self/fd | wc -l)\" -le 4"));
	attack_warm();
	attack_note("socket", "%s",
		    attack_cookie(socket(AF_INET, SOCK_STREAM, 0)) ? "ok" : "wrong");
	return 0;
}

const struct attack_case forks_cases[] = {
	{"forks", forks_run},
	{"unknown-child", forks_unknown},
	{"cookies", forks_twice},
	{"fork-storm", forks_storm},
	{"idle", forks_idling},
	{"daemon", forks_daemon},
	{"vfork-sockets", forks_vforked},
	{"system", forks_system},
	{0},
};
