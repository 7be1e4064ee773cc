// SPDX-License-Identifier: Apache-2.0
/* What programs do with descriptor numbers that they have no business with. */
#include "attack.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Whether sockets of all kinds are sockets, and have the lowest numbers. */
static void numbers_check(const char *step)
{
	int wrong = 0, higher = 0;

	for (int round = 0; round < 40; round++) {
		for (int kind = 0; kind < 4; kind++) {
			int lowest = dup(STDIN_FILENO), fd, domain = 0, type = 0;
			socklen_t length = sizeof(int);

			close(lowest);
			fd = socket(kind < 2 ? AF_INET : AF_INET6,
				    (kind % 2 ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
			getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
			getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length);
			wrong += domain != (kind < 2 ? AF_INET : AF_INET6) ||
				 type != (kind % 2 ? SOCK_STREAM : SOCK_DGRAM) ||
				 fcntl(fd, F_GETFD) != FD_CLOEXEC || fcntl(fd, F_GETFL) != O_RDWR;
			higher += fd != lowest;
			close(fd);
		}
	}
	attack_note(step, "%d wrong, %d higher", wrong, higher);
}

static void numbers_close(const char *how)
{
	if (strcmp(how, "close_range") == 0)
		attack_need(how, close_range(3, ~0U, 0));
	else if (strcmp(how, "raw") == 0)
		attack_need(how, syscall(SYS_close_range, 3, ~0U, 0));
	else if (strcmp(how, "cloexec") == 0)
		attack_need(how, close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
	else if (strcmp(how, "unshare") == 0)
		attack_need(how, close_range(3, ~0U, CLOSE_RANGE_UNSHARE));
	else if (strcmp(how, "closefrom") == 0)
		closefrom(3);
	else
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
}

/* "close-all HOW": and goes on. */
static int numbers_close_all(int argc, char **argv)
{
	for (int round = 0; round < 4; round++) {
		attack_warm();
		if (round == 0)
			attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
		numbers_close(argv[argc - 1]);
		numbers_check("closed");
	}
	return 0;
}

/* "overwrite": puts files where there may be something parked; they stay what they are. */
static int numbers_overwrite(int argc, char **argv)
{
	struct stat st, null;
	int file, changed = 0;

	(void)argc, (void)argv;
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	file = open("/dev/null", O_RDWR | O_CLOEXEC);
	attack_need("open", fstat(file, &null));
	for (int fd = 200; fd < 400; fd++)
		attack_need("dup2", dup2(file, fd));
	numbers_check("overwritten");
	for (int fd = 200; fd < 400; fd++)
		changed += fstat(fd, &st) != 0 || st.st_rdev != null.st_rdev ||
			   fcntl(fd, F_GETFD) != 0;
	attack_note("changed files", "%d", changed);
	for (int fd = 200; fd < 400; fd++)
		close(fd);
	/* Sockets of its own, of the same kind, in the same places. */
	for (int fd = 200; fd < 400; fd++) {
		int s = socket(AF_INET, SOCK_STREAM, 0);

		dup2(s, fd);
		close(s);
	}
	numbers_check("with sockets");
	for (int fd = 200, same = 0; fd < 400; fd++) {
		for (int other = fd + 1; other < 400; other++)
			same += attack_cookie(fd) == attack_cookie(other);
		if (fd == 399)
			attack_note("the same", "%d", same);
	}
	return 0;
}

/* "fill LIMIT [warm]": how many sockets there may be. */
static int numbers_limit(int argc, char **argv)
{
	struct rlimit limit = {.rlim_cur = (rlim_t)atoi(argv[0]), .rlim_max = 4096};
	int count = 0, fd, last = -1;

	attack_need("set limit", setrlimit(RLIMIT_NOFILE, &limit));
	if (argc > 1)
		attack_warm();
	while ((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && count < 5000) {
		count += attack_cookie(fd) != 0;
		last = fd;
	}
	attack_say("last", fd);
	attack_note("sockets", "%d", count);
	for (int i = 0; i < 3; i++)
		attack_say("again", socket(AF_INET6, SOCK_DGRAM, 0));
	close(last);
	attack_say("after one was closed", socket(AF_INET6, SOCK_DGRAM, 0));
	attack_say("and no more", socket(AF_INET6, SOCK_DGRAM, 0));
	return 0;
}

/* "exec-state": a program that is executed begins anew. */
static int numbers_exec(int argc, char **argv)
{
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	if (argc > 0 && strcmp(argv[0], "again") == 0) {
		numbers_check("executed");
		return 0;
	}
	execl("/proc/self/exe", "attack", "exec-state", "again", NULL);
	attack_die("execute");
}

/* "table": threads with a descriptor table of their own. */
static void *numbers_thread(void *arg)
{
	attack_need("unshare", unshare(CLONE_FILES));
	numbers_check("in a thread");
	attack_warm();
	numbers_check("in a thread");
	return arg;
}

static int numbers_table(int argc, char **argv)
{
	pthread_t thread;

	(void)argc, (void)argv;
	attack_warm();
	attack_note("parked", "%s", attack_parked() > 0 ? "yes" : "no");
	for (int i = 0; i < 3; i++) {
		pthread_create(&thread, NULL, numbers_thread, NULL);
		pthread_join(thread, NULL);
		numbers_check("after it");
	}
	return 0;
}

const struct attack_case numbers_cases[] = {
	{"close-all", numbers_close_all}, {"overwrite", numbers_overwrite}, {"fill", numbers_limit},
	{"exec-state", numbers_exec},	  {"table", numbers_table},	    {0},
};
