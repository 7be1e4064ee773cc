// SPDX-License-Identifier: Apache-2.0
/* Descriptors, processes and threads that share sockets, and memory that changes. */
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>
#include <sys/wait.h>

void call_dup(struct actor *a)
{
	int fd = driver_fd(a), from = a->slot, got = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	a->slot = (int)driver_pick(a, SLOTS);
	driver_say(a, got, "dup slot=%d into %d", from, a->slot);
	driver_put(a, got);
}

union rights {
	char space[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* Passes a socket to another container. */
void call_pass(struct actor *a)
{
	int fd = driver_fd(a);
	union rights rights = {.align = {.cmsg_level = SOL_SOCKET,
					 .cmsg_type = SCM_RIGHTS,
					 .cmsg_len = CMSG_LEN(sizeof(int))}};
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct iovec iov = {"", 1};
	struct msghdr msg = {.msg_name = &to,
			     .msg_namelen = sizeof(to),
			     .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &rights,
			     .msg_controllen = sizeof(rights)};
	const char *path = driver_of(a, &world_peers);

	if (*path == '\0')
		return;
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	memcpy(CMSG_DATA(&rights.align), &fd, sizeof(fd));
	driver_say(a, sendmsg(world_channel, &msg, MSG_DONTWAIT), "pass slot=%d to %s", a->slot,
		   strrchr(path, '/') + 1);
}

/* Takes a socket that another container has passed. */
void call_take(struct actor *a)
{
	union rights rights = {0};
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &rights,
			     .msg_controllen = sizeof(rights)};
	int fd = -1;

	if (world_channel < 0)
		return;
	driver_fd(a);
	if (recvmsg(world_channel, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0 ||
	    CMSG_FIRSTHDR(&msg) == NULL)
		return;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	driver_say(a, fd, "take slot=%d", a->slot);
	driver_put(a, fd);
}

/* A child that goes on with the same sockets. */
void call_fork(struct actor *a)
{
	struct actor child;
	pid_t pid;

	if (a->depth > 0)
		return;
	driver_seed(&child, a, "f");
	pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 12; i++)
			driver_step(&child);
		driver_drain(&child);
		_exit(0);
	}
	driver_say(a, pid > 0 ? 0 : -1, "fork");
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

static void *share_run(void *arg)
{
	for (int i = 0; i < 12; i++)
		driver_step(arg);
	return NULL;
}

/* Threads that make calls on the same slots at once. */
void call_threads(struct actor *a)
{
	static const char *const kinds[] = {"s", "t", "u"};
	struct actor actors[3];
	pthread_t threads[3];
	int count = 0;

	if (a->depth > 0)
		return;
	for (int i = 0; i < 3; i++)
		driver_seed(&actors[i], a, kinds[i]);
	while (count < 3 && pthread_create(&threads[count], NULL, share_run, &actors[count]) == 0)
		count++;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	driver_say(a, count, "threads");
}

/* An address that another thread changes. */
struct race {
	struct driver_addr now, one, other;
	atomic_bool over;
};

static void *race_flip(void *arg)
{
	struct race *r = arg;

	while (!atomic_load(&r->over)) {
		memcpy(&r->now, &r->one, sizeof(r->one.in6));
		memcpy(&r->now, &r->other, sizeof(r->other.in6));
	}
	return NULL;
}

static long race_call(struct actor *a, uint32_t what, int fd, struct race *r, socklen_t len)
{
	char text[PAYLOAD_MAX];
	struct iovec iov = {text, (size_t)driver_payload(a, text)};
	struct msghdr msg = {
		.msg_name = &r->now, .msg_namelen = len, .msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr msgs = {.msg_hdr = msg};

	switch (what) {
	case 0:
		return connect(fd, &r->now.sa, len);
	case 1:
		return sendto(fd, text, iov.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL, &r->now.sa, len);
	case 2:
		return sendto(fd, text, iov.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_FASTOPEN,
			      &r->now.sa, len);
	case 3:
		return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	case 4:
		return sendmmsg(fd, &msgs, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	default:
		return bind(fd, &r->now.sa, len);
	}
}

/* The same call on a socket again and again, while its address changes. */
void call_race(struct actor *a)
{
	struct race r = {0};
	uint32_t what = driver_pick(a, 6);
	int family = driver_pick(a, 3) ? AF_INET : AF_INET6;
	int type = driver_pick(a, 3) ? SOCK_DGRAM : SOCK_STREAM;
	struct driver_addr none = driver_unspec();
	pthread_t thread;
	int fd;

	r.one = what == 5 ? driver_own(a) : driver_destination(a);
	r.other = what == 5 ? driver_own(a) : driver_destination(a);
	r.now = r.one;
	if (a->depth > 1 || pthread_create(&thread, NULL, race_flip, &r) != 0)
		return;
	fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	driver_say(a, fd, "race call=%u family=%d type=%d one %s", what, family, type,
		   driver_text(&r.one));
	for (int i = 0; i < 24; i++) {
		driver_say(a, race_call(a, what, fd, &r, r.one.len), "raced");
		connect(fd, &none.sa, none.len);
	}
	atomic_store(&r.over, true);
	pthread_join(thread, NULL);
	driver_fd(a);
	driver_put(a, fd);
}
