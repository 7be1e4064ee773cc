// SPDX-License-Identifier: Apache-2.0
/*
 * A program whose socket is descriptor NUMBER and was registered with its
 * epoll instance by somebody else. Started with the instance at 3 and the
 * socket at 4; finds the registration as any program would, by the number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static int program_fail(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 7};
	struct epoll_event got;
	int number, epoll, sock, out, patience;

	if (argc != 4)
		return 2;
	number = atoi(argv[1]);
	patience = atoi(argv[3]); /* ms, for hangs */
	/* Everything out of the way of any number a test may choose. */
	epoll = fcntl(3, F_DUPFD, 900);
	sock = fcntl(4, F_DUPFD, 900);
	out = fcntl(1, F_DUPFD, 900);
	for (int fd = 0; fd < 900; fd++)
		close(fd);
	if (dup2(sock, number) < 0 || close(sock) != 0)
		return 3;
	if (number != 1)
		dup2(out, 1);

	if (epoll_wait(epoll, &got, 1, patience) != 1)
		return program_fail("wait");
	if (got.data.u64 != strtoull(argv[2], NULL, 0))
		return program_fail("data of the registration");
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event) == 0 || errno != EEXIST)
		return program_fail("second add");
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, number, &event) != 0)
		return program_fail("modify");
	if (epoll_wait(epoll, &got, 1, patience) != 1 || got.data.u64 != 7)
		return program_fail("wait after modify");
	if (epoll_ctl(epoll, EPOLL_CTL_DEL, number, NULL) != 0)
		return program_fail("delete");
	if (epoll_ctl(epoll, EPOLL_CTL_DEL, number, NULL) == 0 || errno != ENOENT)
		return program_fail("second delete");
	return 0;
}
