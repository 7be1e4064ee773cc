// SPDX-License-Identifier: Apache-2.0
/* The entry point, and what the cases share. */
#include "attack.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <time.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

_Noreturn void attack_die(const char *what)
{
	fprintf(stderr, "attack: %s: %s\n", what, strerror(errno));
	exit(3);
}

long attack_need(const char *what, long result)
{
	if (result < 0)
		attack_die(what);
	return result;
}

void attack_note(const char *step, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%s: ", step);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	va_end(args);
}

long attack_say(const char *step, long result)
{
	int error = errno;

	attack_note(step, "%s", result >= 0 ? "ok" : strerrorname_np(error));
	errno = error;
	return result;
}

bool attack_late(int seconds)
{
	static struct timespec first;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (first.tv_sec == 0)
		first = now;
	return now.tv_sec - first.tv_sec >= seconds;
}

void attack_hold(void)
{
	char c;

	attack_note("hold", "ok");
	while (read(STDIN_FILENO, &c, 1) > 0)
		;
}

struct attack_addr attack_addr(const char *text)
{
	struct attack_addr a = {.text = text};
	char host[64] = "", *end, *scope;
	const char *colon = strrchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : 0;
	bool in6 = text[0] == '[';

	if (n < 2 || n >= sizeof(host))
		attack_die(text);
	memcpy(host, text + in6, n - 2 * in6);
	scope = strchr(host, '%');
	if (scope)
		*scope++ = '\0';
	if (in6) {
		a.in6.sin6_family = AF_INET6;
		a.in6.sin6_port = htons((uint16_t)strtoul(colon + 1, &end, 10));
		a.in6.sin6_scope_id = scope ? (uint32_t)atoi(scope) : 0;
		a.len = sizeof(a.in6);
	} else {
		a.in.sin_family = AF_INET;
		a.in.sin_port = htons((uint16_t)strtoul(colon + 1, &end, 10));
		a.len = sizeof(a.in);
	}
	errno = EINVAL;
	if (inet_pton(a.sa.sa_family, host,
		      in6 ? (void *)&a.in6.sin6_addr : (void *)&a.in.sin_addr) != 1)
		attack_die(text);
	return a;
}

int attack_socket(int family, int type)
{
	int one = 1, fd = socket(family, type | SOCK_CLOEXEC, 0);

	attack_need("make socket", fd);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	return fd;
}

void attack_pin(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	attack_need("stay on a CPU", sched_setaffinity(0, sizeof(one), &one));
}

uint64_t attack_netns(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	attack_need("read namespace of socket",
		    getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len));
	return cookie;
}

bool attack_listens(int fd)
{
	int on = 0;
	socklen_t len = sizeof(on);

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) == 0 && on;
}

void attack_warm(void)
{
	for (int i = 0; i < 6; i++)
		for (int kind = 0; kind < 4; kind++)
			close(attack_socket(kind < 2 ? AF_INET : AF_INET6,
					    kind % 2 ? SOCK_STREAM : SOCK_DGRAM));
}

uint64_t attack_cookie(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len);
	return cookie;
}

int attack_parked(void)
{
	int count = 0;

	for (int fd = 224; fd < 1024; fd++)
		count += attack_cookie(fd) != 0;
	return count;
}

int attack_unspec(int fd)
{
	struct sockaddr_in6 a = {.sin6_family = AF_UNSPEC};

	return connect(fd, (struct sockaddr *)&a, sizeof(a));
}

union attack_rights {
	char space[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

void attack_send_fd(int channel, int fd)
{
	union attack_rights rights = {0};
	struct iovec iov = {"", 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &rights,
			     .msg_controllen = sizeof(rights)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	attack_need("pass descriptor", sendmsg(channel, &msg, 0));
}

int attack_receive_fd(int channel)
{
	union attack_rights rights = {0};
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &rights,
			     .msg_controllen = sizeof(rights)};
	int fd = -1;

	attack_need("take descriptor", recvmsg(channel, &msg, 0));
	if (CMSG_FIRSTHDR(&msg) == NULL)
		attack_die("take descriptor");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

/* The cgroup v2 path of a process, or NULL. */
static char *attack_cgroup(const char *pid, char *line, size_t size)
{
	char path[300], *found = NULL;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/cgroup", pid);
	f = fopen(path, "re");
	while (f != NULL && found == NULL && fgets(line, (int)size, f) != NULL) {
		if (strncmp(line, "0::", 3) == 0)
			found = line + 3;
	}
	if (f != NULL)
		fclose(f);
	if (found != NULL)
		found[strcspn(found, "\n")] = '\0';
	return found;
}

int attack_helpers(pid_t *pids, int max)
{
	char ours[4096], theirs[4096], *own = attack_cgroup("self", ours, sizeof(ours));
	struct dirent *e;
	int count = 0;
	size_t parent;
	DIR *proc = opendir("/proc");

	if (proc == NULL || own == NULL || strrchr(own, '/') == NULL)
		attack_die("find own cgroup");
	parent = (size_t)(strrchr(own, '/') - own) + 1;
	while ((e = readdir(proc)) != NULL && count < max) {
		char *cgroup;

		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		cgroup = attack_cgroup(e->d_name, theirs, sizeof(theirs));
		if (cgroup != NULL && strncmp(cgroup, own, parent) == 0 && strcmp(cgroup, own) != 0)
			pids[count++] = atoi(e->d_name);
	}
	closedir(proc);
	return count;
}

int main(int argc, char **argv)
{
	static const struct attack_case *const tables[] = {
		abi_cases,   calls_cases,      escape_cases,  forks_cases,   fuzz_cases,
		graft_cases, interfaces_cases, listen_cases,  load_cases,    marks_cases,
		loop_cases,  loopload_cases,   numbers_cases, options_cases, packets_cases,
		pairs_cases, pinned_cases,     race_cases,    reach_cases,   stuck_cases,
		udp_cases,
	};

	const struct attack_case *found = NULL;

	for (size_t i = 0; argc > 1 && i < sizeof(tables) / sizeof(tables[0]); i++) {
		for (const struct attack_case *c = tables[i]; c->name != NULL; c++) {
			if (strcmp(c->name, argv[1]) != 0)
				continue;
			if (found != NULL) {
				fprintf(stderr, "attack: two cases are called %s\n", argv[1]);
				return 3;
			}
			found = c;
		}
	}
	if (found != NULL)
		return found->run(argc - 2, argv + 2);
	fprintf(stderr, "attack: no such case\n");
	return 3;
}
