// SPDX-License-Identifier: Apache-2.0
/* What a descriptor is, and what of it survives exec. */
#include "probe.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

extern char **environ;

static void inherit_flags_are(const char *step, int fd)
{
	int fl = fcntl(fd, F_GETFL);

	probe_line(step, "cloexec %d nonblock %d mode %d", fcntl(fd, F_GETFD) & FD_CLOEXEC,
		   !!(fl & O_NONBLOCK), fl & O_ACCMODE);
}

/* Non-blocking and close-on-exec, in each way that they can be set. */
static void inherit_flags(int family)
{
	int fds[6], on = 1;

	fds[0] = probe_socket(family, SOCK_STREAM);
	fds[1] = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC);
	fds[2] = probe_socket(family, SOCK_STREAM | SOCK_NONBLOCK);
	fds[3] = probe_socket(family, SOCK_STREAM);
	probe_want("F_SETFD", fcntl(fds[3], F_SETFD, FD_CLOEXEC), 0);
	probe_want("F_SETFL", fcntl(fds[3], F_SETFL, O_NONBLOCK), 0);
	fds[4] = probe_socket(family, SOCK_STREAM);
	probe_want("FIOCLEX", ioctl(fds[4], FIOCLEX), 0);
	probe_want("FIONBIO", ioctl(fds[4], FIONBIO, &on), 0);
	fds[5] = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK);
	on = 0;
	probe_want("FIONCLEX", ioctl(fds[5], FIONCLEX), 0);
	probe_want("FIONBIO off", ioctl(fds[5], FIONBIO, &on), 0);
	for (int i = 0; i < 6; i++) {
		inherit_flags_are("before", fds[i]);
		probe_rc("connect", probe_connect(fds[i], probe_peer(family, env.tcp)));
		inherit_flags_are("after", fds[i]);
		probe_poll(fds[i], POLLOUT, PROBE_PATIENCE);
		probe_echo("echo", fds[i], "flags");
	}
}

static void inherit_flags_bind(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK);

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	inherit_flags_are("bound", fd);
	fd = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK);
	probe_want("bind", probe_bind(fd, probe_loopback(family, 0)), 0);
	inherit_flags_are("bound to loopback", fd);
	fd = probe_socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	inherit_flags_are("datagram", fd);
}

/* Who gets the signals of a socket is a matter of the file, too. */
static void inherit_owner(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("F_SETOWN", fcntl(fd, F_SETOWN, getpid()), 0);
	probe_want("F_SETSIG", fcntl(fd, F_SETSIG, SIGUSR2), 0);
	signal(SIGUSR2, SIG_IGN);
	probe_want("O_ASYNC", fcntl(fd, F_SETFL, O_ASYNC), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_check("owner", fcntl(fd, F_GETOWN) == getpid());
	probe_check("signal", fcntl(fd, F_GETSIG) == SIGUSR2);
	probe_check("async", fcntl(fd, F_GETFL) & O_ASYNC);
}

static void inherit_exec(int family)
{
	int fd = probe_echo_client(family);

	probe_echo("before exec", fd, "old image");
	probe_exec("@echo", fd);
}

static void inherit_exec_unconnected(int family)
{
	probe_exec("@connect", probe_socket(family, SOCK_STREAM));
}

static void inherit_exec_cloexec(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC);

	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_exec("@closed", fd);
}

static void inherit_exec_fcntl(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);

	probe_want("F_SETFD", fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_exec("@closed", fd);
}

static void inherit_exec_bound(int family)
{
	int fd = probe_socket(family, SOCK_STREAM | SOCK_CLOEXEC);

	probe_want("bind", probe_bind(fd, probe_any(family, env.port)), 0);
	probe_exec("@closed", fd);
}

static void inherit_exec_listener(int family)
{
	probe_exec("@accept", probe_listener(probe_any(family, env.port)));
}

/* As inetd does: a connection becomes a program's standard input. */
static void inherit_spawn(int family)
{
	posix_spawn_file_actions_t actions;
	int fd = probe_echo_client(family), err;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 0);
	err = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, probe_exec_argv("@echo", 0),
			  environ);
	if (err)
		probe_line("posix_spawn", "%s", probe_errno(err));
	else
		probe_wait("child", pid);
	probe_echo("parent", fd, "mine too");
}

static void inherit_vfork(int family)
{
	int fd = probe_socket(family, SOCK_STREAM);
	char **argv = probe_exec_argv("@connect", fd);
	pid_t pid = vfork();

	if (pid == 0) {
		execv("/proc/self/exe", argv);
		_exit(1);
	}
	probe_wait("child", pid);
	probe_names("parent", fd);
	probe_echo("parent", fd, "after vfork");
}

static void inherit_at_echo(int family)
{
	(void)family;
	probe_names("after exec", env.fd);
	probe_echo("after exec", env.fd, "new image");
}

static void inherit_at_connect(int family)
{
	probe_want("connect after exec", probe_connect(env.fd, probe_peer(family, env.tcp)), 0);
	probe_echo("after exec", env.fd, "new image");
}

static void inherit_at_closed(int family)
{
	(void)family;
	probe_want("closed by exec", fcntl(env.fd, F_GETFD), EBADF);
}

static void inherit_at_accept(int family)
{
	int conn;

	probe_line("dial", "%s", probe_dial(family, env.port));
	conn = probe_accept("accept after exec", env.fd, NULL);
	probe_echo("talk", conn, "new image");
}

/* How many descriptors exec would hand on. The shim's sockets in advance are not among
 * them (docs/LIMITS.md has them), nor is that of the folder. */
static int inherit_count(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int n = 0;

	if (!d)
		probe_die("opendir");
	while ((e = readdir(d))) {
		int flags = e->d_name[0] == '.' ? -1 : fcntl(atoi(e->d_name), F_GETFD);

		n += flags >= 0 && !(flags & FD_CLOEXEC);
	}
	closedir(d);
	return n;
}

/* Descriptors are the lowest free numbers, and no others appear. */
static void inherit_numbers(int family)
{
	int start = inherit_count(), lowest = dup(0), a, b, c;

	close(lowest);
	a = probe_socket(family, SOCK_STREAM);
	probe_check("lowest free number", a == lowest);
	b = probe_socket(family, SOCK_DGRAM);
	probe_check("the next one", b > a && dup(0) > b);
	probe_want("connect", probe_connect(a, probe_peer(family, env.tcp)), 0);
	probe_want("connect", probe_connect(b, probe_peer(family, env.udp)), 0);
	close(a);
	c = probe_socket(family, SOCK_STREAM);
	probe_check("a closed number again", c == a);
	probe_want("bind", probe_bind(c, probe_any(family, env.port)), 0);
	probe_want("listen", listen(c, 1), 0);
	a = probe_socket(family, SOCK_STREAM);
	probe_want("connect to loopback", probe_connect(a, probe_loopback(family, env.closed)),
		   ECONNREFUSED);
	probe_line("descriptors more", "%d", inherit_count() - start);
}

/* The limit of descriptors is the program's own. */
static void inherit_limit(int family)
{
	struct rlimit limit = {24, 24};
	int n = 0, fd, last = -1;

	probe_want("RLIMIT_NOFILE", setrlimit(RLIMIT_NOFILE, &limit), 0);
	while ((fd = socket(family, SOCK_STREAM, 0)) >= 0 && n < 100) {
		last = fd;
		n++;
	}
	probe_want("one too many", fd, EMFILE);
	probe_check("up to the limit", last == 23);
	probe_want("connect the last", probe_connect(last, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", last, "full");
	close(last);
	probe_fd("room again", socket(family, SOCK_STREAM, 0));
}

static void inherit_stat(int family)
{
	int fd = probe_echo_client(family);
	char link[64] = "", path[64];
	struct iovec iov = {link, 1};
	void *volatile nowhere = (void *)8; /* the compiler would object */
	struct stat st;

	probe_want("fstat", fstat(fd, &st), 0);
	probe_check("a socket", S_ISSOCK(st.st_mode));
	probe_line("mode", "%o", (unsigned int)st.st_mode & 07777);
	probe_check("owner", st.st_uid == getuid());
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, link, sizeof(link) - 1) < 0)
		probe_die("readlink");
	probe_check("named as a socket", !strncmp(link, "socket:[", 8));
	probe_want("open by that name", open(path, O_RDWR), ENXIO);
	probe_want("lseek", lseek(fd, 0, SEEK_CUR), ESPIPE);
	probe_want("pread", pread(fd, link, 1, 0), ESPIPE);
	probe_want("pwritev", pwritev(fd, &iov, 1, 0), ESPIPE);
	probe_want("ftruncate", ftruncate(fd, 0), EINVAL);
	probe_want("fsync", fsync(fd), EINVAL);
	probe_want("isatty", isatty(fd) - 1, ENOTTY);
	probe_want("read to nowhere", read(fd, nowhere, 0), 0);
	probe_want("write from nowhere", write(fd, nowhere, 1), EFAULT);
	probe_echo("echo", fd, "unharmed");
}

/* A process that may not be looked into is served all the same. */
static void inherit_undumpable(int family)
{
	int fd;

	probe_want("PR_SET_DUMPABLE", prctl(PR_SET_DUMPABLE, 0), 0);
	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		probe_die("setresuid");
	fd = probe_socket(family, SOCK_STREAM);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.tcp)), 0);
	probe_echo("echo", fd, "closed book");
	fd = probe_listener(probe_any(family, env.port));
	probe_line("dial", "%s", probe_dial(family, env.port));
	probe_accept("accept", fd, NULL);
	fd = probe_socket(family, SOCK_DGRAM);
	probe_want("connect", probe_connect(fd, probe_peer(family, env.udp)), 0);
	probe_echo("echo", fd, "datagram");
}

const struct probe_case inherit_cases[] = {
	{"inherit-flags-v4", inherit_flags, AF_INET, 0},
	{"inherit-flags-v6", inherit_flags, AF_INET6, 0},
	{"inherit-flags-bind", inherit_flags_bind, AF_INET, 1},
	{"inherit-owner", inherit_owner, AF_INET, 0},
	{"inherit-exec", inherit_exec, AF_INET, 0},
	{"inherit-exec-unconnected", inherit_exec_unconnected, AF_INET, 0},
	{"inherit-exec-cloexec", inherit_exec_cloexec, AF_INET, 0},
	{"inherit-exec-fcntl", inherit_exec_fcntl, AF_INET, 0},
	{"inherit-exec-bound", inherit_exec_bound, AF_INET, 1},
	{"inherit-exec-listener", inherit_exec_listener, AF_INET, 1},
	{"inherit-spawn", inherit_spawn, AF_INET, 0},
	{"inherit-vfork", inherit_vfork, AF_INET, 0},
	{"inherit-numbers", inherit_numbers, AF_INET, 1},
	{"inherit-limit", inherit_limit, AF_INET, 0},
	{"inherit-stat", inherit_stat, AF_INET, 0},
	{"inherit-undumpable", inherit_undumpable, AF_INET, 1},
	{"@echo", inherit_at_echo, AF_INET, 0},
	{"@connect", inherit_at_connect, AF_INET, 0},
	{"@closed", inherit_at_closed, AF_INET, 0},
	{"@accept", inherit_at_accept, AF_INET, 0},
	{0},
};
