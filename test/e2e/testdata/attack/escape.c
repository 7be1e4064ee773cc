// SPDX-License-Identifier: Apache-2.0
/*
 * Attacks on the processes that make the sockets and answer the calls, and on
 * the walls between namespaces.
 */
#include "attack.h"

#include <dirent.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define ESCAPE_MAX 16

static void escape_open(const char *who, pid_t pid, const char *what, int flags)
{
	char path[64], step[100];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	snprintf(step, sizeof(step), "%s %s", who, what);
	attack_say(step, open(path, flags));
}

/* What a directory of proc tells of the files that it lists. */
static void escape_list(const char *who, pid_t pid, const char *what)
{
	char path[320], target[64], step[100];
	struct dirent *e;
	DIR *dir;
	int entries = 0;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	snprintf(step, sizeof(step), "%s %s", who, what);
	dir = opendir(path);
	if (dir == NULL) {
		attack_say(step, -1);
		return;
	}
	while ((e = readdir(dir)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/%s/%s", pid, what, e->d_name);
		attack_say(step, readlink(path, target, sizeof(target)));
		entries++;
	}
	if (entries == 0) {
		errno = ENOENT;
		attack_say(step, -1);
	}
	closedir(dir);
}

static void escape_trace(const char *who, pid_t pid)
{
	char step[100], buffer[8];
	struct iovec local = {buffer, sizeof(buffer)}, remote = {(void *)0x400000, sizeof(buffer)};
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	snprintf(step, sizeof(step), "%s PTRACE_ATTACH", who);
	if (attack_say(step, ptrace(PTRACE_ATTACH, pid, NULL, NULL)) >= 0)
		ptrace(PTRACE_DETACH, pid, NULL, NULL);
	snprintf(step, sizeof(step), "%s PTRACE_SEIZE", who);
	attack_say(step, ptrace(PTRACE_SEIZE, pid, NULL, NULL));
	snprintf(step, sizeof(step), "%s process_vm_readv", who);
	attack_say(step, process_vm_readv(pid, &local, 1, &remote, 1, 0));
	for (int fd = 0; fd < 8; fd++) {
		snprintf(step, sizeof(step), "%s pidfd_getfd", who);
		attack_say(step, syscall(SYS_pidfd_getfd, pidfd, fd, 0));
	}
	close(pidfd);
	escape_open(who, pid, "mem", O_RDWR);
	escape_list(who, pid, "fd");
	escape_open(who, pid, "fd/3", O_RDWR);
	escape_list(who, pid, "map_files");
	escape_open(who, pid, "environ", O_RDONLY);
	escape_open(who, pid, "ns/net", O_RDONLY);
}

/* setns(2) into what can be opened of the host; HOST is a path to it. */
static void escape_setns(const char *step, const char *host)
{
	int fd = open(host, O_RDONLY);

	attack_say(step, fd < 0 ? fd : setns(fd, CLONE_NEWNET));
}

static int escape_walls(int argc, char **argv)
{
	pid_t pids[ESCAPE_MAX];
	int count = attack_helpers(pids, ESCAPE_MAX);

	attack_note("helpers", "%s", count > 0 ? "found" : "none");
	for (int i = 0; i < count; i++)
		escape_trace("helper", pids[i]);
	escape_trace("supervisor", getppid());
	escape_setns("setns", argv[argc - 1]);
	escape_setns("setns of init", "/proc/1/ns/net");
	if (unshare(CLONE_NEWUSER) == 0) {
		escape_setns("setns as root of a user namespace", argv[argc - 1]);
		for (int i = 0; i < count; i++)
			escape_list("helper from a user namespace", pids[i], "fd");
	}
	return 0;
}

/* "kill ROUNDS ADDR": kills the helpers, and then needs them. */
static int escape_kill(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	pid_t pids[ESCAPE_MAX];

	for (int round = 0; round < atoi(argv[0]); round++) {
		int count = attack_helpers(pids, ESCAPE_MAX);

		for (int i = 0; i < count; i++)
			kill(pids[i], SIGKILL);
		for (int i = 0; i < 4; i++) {
			int fd = attack_socket(to.sa.sa_family, SOCK_STREAM);

			attack_say("connect", connect(fd, &to.sa, to.len));
			close(fd);
		}
	}
	return 0;
}

/*
 * "move CGROUP ADDR": moves the helpers out of the cgroup that is policed, then
 * goes to where nothing may get, by a call that nobody looks at.
 */
static int escape_move(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	pid_t pids[ESCAPE_MAX];
	int count = attack_helpers(pids, ESCAPE_MAX);
	long moved = 0;
	char pid[16];

	for (int i = 0; i < count; i++) {
		int procs = open(argv[0], O_WRONLY);

		snprintf(pid, sizeof(pid), "%d", pids[i]);
		moved |= procs < 0 ? procs : write(procs, pid, strlen(pid));
		close(procs);
	}
	attack_say("move helpers", moved);
	memcpy(attack_low(), &to.in6, to.len);
	for (int i = 0; i < 200; i++) {
		int fd = socket(to.sa.sa_family, SOCK_STREAM, 0);

		if (attack_i386(362, fd, (long)attack_low(), to.len, 0, 0) == 0) {
			attack_note("connect", "ok");
			send(fd, "moved", 5, MSG_NOSIGNAL);
			return 0;
		}
	}
	attack_note("connect", "refused");
	return 0;
}

/*
 * "limit AT": takes the files from those who serve us, so that they cannot
 * look at our sockets, and listens. Then waits to be looked at.
 */
static int escape_limit(int argc, char **argv)
{
	struct attack_addr at = attack_addr(argv[argc - 1]);
	struct rlimit none = {0, 4096};
	pid_t pids[ESCAPE_MAX];
	int fds[8], count;

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		fds[i] = attack_socket(AF_INET, SOCK_STREAM);
	count = attack_helpers(pids, ESCAPE_MAX);
	pids[count++] = getppid();
	for (int i = 0; i < count; i++)
		attack_say("limit", prlimit(pids[i], RLIMIT_NOFILE, &none, NULL));
	attack_say("listen", listen(fds[0], 5));
	attack_say("bind", bind(fds[1], &at.sa, at.len));
	attack_say("listen", listen(fds[1], 5));
	attack_say("i386 listen", attack_i386(363, fds[2], 5, 0, 0, 0));
	attack_hold();
	return 0;
}

/*
 * "nested INTERFACE TARGET...": takes sockets along to a network namespace of its
 * own, in which it is root, and tries what it can do with them there.
 */
enum { ESCAPE_TARGETS = 64 };

static int escape_nested(int argc, char **argv)
{
	int tcp[ESCAPE_TARGETS], udp[ESCAPE_TARGETS], idle[2];
	struct ifreq r = {.ifr_flags = 0};
	uint64_t host;

	for (int i = 1; i < argc && i < ESCAPE_TARGETS; i++) {
		struct attack_addr to = attack_addr(argv[i]);

		tcp[i] = attack_socket(to.sa.sa_family, SOCK_STREAM);
		udp[i] = attack_socket(to.sa.sa_family, SOCK_DGRAM);
	}
	idle[0] = attack_socket(AF_INET, SOCK_STREAM);
	idle[1] = attack_socket(AF_INET6, SOCK_STREAM);
	host = attack_netns(idle[0]);
	attack_need("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNET));
	attack_note("new sockets are the host's", "%s",
		    attack_netns(attack_socket(AF_INET, SOCK_STREAM)) == host ? "yes" : "no");
	for (int i = 1; i < argc && i < ESCAPE_TARGETS; i++) {
		struct attack_addr to = attack_addr(argv[i]);

		if (attack_say(argv[i], connect(tcp[i], &to.sa, to.len)) >= 0)
			send(tcp[i], "nested", 6, MSG_NOSIGNAL);
		attack_say(argv[i], sendto(udp[i], "nested", 6, 0, &to.sa, to.len));
	}
	strncpy(r.ifr_name, argv[0], IFNAMSIZ - 1);
	attack_say("SIOCSIFFLAGS", ioctl(idle[0], SIOCSIFFLAGS, &r));
	attack_say("SIOCGSKNS", ioctl(idle[0], SIOCGSKNS));
	attack_say("listen", listen(idle[0], 5));
	attack_say("i386 listen", attack_i386(363, idle[1], 5, 0, 0, 0));
	attack_hold();
	return 0;
}

/* Programs get no descriptor but those they had. */
static int escape_files(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (int fd = 0; fd < 1024; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			attack_note("descriptor", "%d", fd);
	return 0;
}

const struct attack_case escape_cases[] = {
	{"walls", escape_walls},
	{"kill", escape_kill},
	{"move", escape_move},
	{"limit", escape_limit},
	{"files", escape_files},
	{"nested", escape_nested},
	{0},
};
