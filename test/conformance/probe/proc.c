// SPDX-License-Identifier: Apache-2.0
/* Children, signals and waiting. */
#include "probe.h"

#include <sys/prctl.h>
#include <time.h>

static volatile sig_atomic_t ticked;
static int ticks[2]; /* a pipe with a byte for each tick */

/* A child that dies with its parent, so that a hung case leaves nothing. */
pid_t probe_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		probe_die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

void probe_wait(const char *step, pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			probe_die(step);
	if (WIFSIGNALED(status))
		probe_line(step, "signal %d", WTERMSIG(status));
	else
		probe_line(step, "exit %d", WEXITSTATUS(status));
	if (status)
		probe_fail();
}

static void proc_tick(int sig)
{
	int keep = errno;

	(void)sig;
	ticked = 1;
	if (write(ticks[1], "t", 1) != 1)
		_exit(4);
	errno = keep;
}

/*
 * Sends SIGUSR1 to the caller every 100 ms until it is stopped: one signal
 * could come before the call that it is meant to interrupt.
 */
pid_t probe_ticker(int flags)
{
	struct sigaction sa = {.sa_handler = proc_tick, .sa_flags = flags};
	pid_t parent = getpid(), pid;

	if (pipe(ticks))
		probe_die("pipe");
	sigaction(SIGUSR1, &sa, NULL);
	ticked = 0;
	pid = probe_fork();
	if (pid)
		return pid;
	for (;;) { /* dies with its parent */
		probe_sleep(100);
		kill(parent, SIGUSR1);
	}
}

void probe_ticker_stop(pid_t pid)
{
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

bool probe_ticked(void)
{
	return ticked;
}

/* Waits, in a child of the process that is signalled, until n signals came. */
void probe_ticks(int n)
{
	char byte;

	while (n--)
		if (read(ticks[0], &byte, 1) != 1)
			probe_die("read ticks");
}

/* Milliseconds of a clock that only goes forward. */
long probe_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void probe_sleep(int ms)
{
	struct timespec ts = {ms / 1000, (ms % 1000) * 1000000L};

	while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
		;
}

/* The arguments that make the probe run another case on a descriptor. */
char **probe_exec_argv(const char *name, int fd)
{
	static char *argv[32];
	static char number[16];
	int n = 0;

	snprintf(number, sizeof(number), "fd=%d", fd);
	argv[n++] = "probe";
	argv[n++] = (char *)name;
	for (char **p = probe_argv + 2; *p && n < 30; p++)
		argv[n++] = *p;
	argv[n++] = number;
	argv[n] = NULL;
	return argv;
}

void probe_exec(const char *name, int fd)
{
	execv("/proc/self/exe", probe_exec_argv(name, fd));
	probe_die("execv");
}

void probe_send_fd(int via, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	if (sendmsg(via, &msg, 0) != 1)
		probe_die("send descriptor");
}

int probe_recv_fd(int via)
{
	char byte, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	int fd;

	if (recvmsg(via, &msg, 0) != 1 || !CMSG_FIRSTHDR(&msg))
		probe_die("receive descriptor");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return fd;
}
