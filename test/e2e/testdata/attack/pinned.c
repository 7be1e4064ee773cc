// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that hold what the agent has to wait for when it answers their calls: their
 * memory, the lock of a socket, the lock of an epoll instance.
 */
#include "attack.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

static char *pinned_page; /* nobody ever fills it */
static int pinned_file;	  /* whose lock is held, if it is a socket */
static struct attack_addr pinned_to;

#ifndef USERFAULTFD_IOC_NEW /* 6.1 */
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* A page that nobody ever fills. Returns the descriptor by which one could. */
static int pinned_make_page(const char *device)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register r = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	int maker = (int)attack_need(device, open(device, O_RDWR | O_CLOEXEC));
	int fd =
		(int)attack_need(device, ioctl(maker, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK));

	pinned_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	attack_need("userfaultfd", ioctl(fd, UFFDIO_API, &api));
	r.range.start = (uintptr_t)pinned_page;
	r.range.len = 4096;
	attack_need("userfaultfd", ioctl(fd, UFFDIO_REGISTER, &r));
	return fd;
}

/* A call for which the agent reads the page. */
static void *pinned_option(void *none)
{
	setsockopt(pinned_file, 254, 4, pinned_page, 128);
	return none;
}

/* Sends the page, and holds the socket's lock while it is read. */
static void *pinned_sender(void *none)
{
	send(pinned_file, pinned_page, 4096, 0);
	return none;
}

/* A call for which the agent looks at the socket. */
static void *pinned_listen(void *none)
{
	listen(pinned_file, 1);
	return none;
}

static int pinned_epoll;

/* Waits into the page, and holds the instance's lock while that is written. */
static void *pinned_waiter(void *none)
{
	epoll_wait(pinned_epoll, (struct epoll_event *)pinned_page, 8, -1);
	return none;
}

/* A call for which the agent looks at the instance: the socket moves to the container's own
 * namespace. */
static void *pinned_connect(void *file)
{
	connect((int)(intptr_t)file, &pinned_to.sa, pinned_to.len);
	return NULL;
}

struct pinned_thread {
	void *(*run)(void *);
	void *with;
};

/* No thread can be started while the page is awaited: so all are there before that. */
static pthread_barrier_t pinned_barrier;

static void *pinned_run(void *thread)
{
	const struct pinned_thread *t = thread;

	pthread_barrier_wait(&pinned_barrier);
	return t->run(t->with);
}

/* Makes a thread that calls when all do. */
static void pinned_prepare(void *(*run)(void *), void *with)
{
	struct pinned_thread *t = malloc(sizeof(*t));
	pthread_t thread;

	*t = (struct pinned_thread){run, with};
	attack_need("thread", -pthread_create(&thread, NULL, pinned_run, t));
}

/* Has a lock held by a thread that waits for the page, and returns once it does. */
static void pinned_hold(void *(*run)(void *), int page)
{
	struct pollfd awaited = {.fd = page, .events = POLLIN};
	pthread_t thread;

	attack_need("thread", -pthread_create(&thread, NULL, run, NULL));
	attack_need("wait for page",
		    poll(&awaited, 1, -1) == 1 && awaited.revents == POLLIN ? 0 : -EIO);
}

static void pinned_by_memory(int threads)
{
	pinned_file = (int)attack_need("make socket", socket(4, SOCK_STREAM, 0));
	for (int i = 0; i < threads; i++)
		pinned_prepare(pinned_option, NULL);
}

static void pinned_by_socket(int threads, int page)
{
	pinned_file = attack_socket(pinned_to.sa.sa_family, SOCK_STREAM);
	attack_need("connect", connect(pinned_file, &pinned_to.sa, pinned_to.len));
	for (int i = 0; i < threads; i++)
		pinned_prepare(pinned_listen, NULL);
	pinned_hold(pinned_sender, page);
}

static void pinned_by_epoll(int threads, int page)
{
	struct epoll_event e = {.events = EPOLLIN};
	int ready = eventfd(1, EFD_CLOEXEC);

	pinned_epoll = epoll_create1(EPOLL_CLOEXEC);
	attack_need("watch", epoll_ctl(pinned_epoll, EPOLL_CTL_ADD, ready, &e));
	for (int i = 0; i < threads; i++) {
		int file = attack_socket(pinned_to.sa.sa_family, SOCK_STREAM);

		attack_need("watch", epoll_ctl(pinned_epoll, EPOLL_CTL_ADD, file, &e));
		pinned_prepare(pinned_connect, (void *)(intptr_t)file);
	}
	pinned_hold(pinned_waiter, page);
}

static void pinned_hand_over(const char *path, int file)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	attack_need("hand over", connect(s, (struct sockaddr *)&to, sizeof(to)));
	attack_send_fd(s, file);
}

/*
 * "pin memory|socket|epoll DEVICE THREADS ADDR [PATH]": that many threads make calls that the
 * agent cannot answer. DEVICE is like /dev/fuse, or else like /dev/userfaultfd. With PATH, the
 * descriptor by which the page is filled goes to who listens there, and so outlives the program.
 */
static int pinned_pin(int argc, char **argv)
{
	const char *way = argv[0];
	bool memory = strcmp(way, "memory") == 0;
	int threads = atoi(argv[2]);
	int page = memory ? attack_slow_file(argv[1], (void **)&pinned_page)
			  : pinned_make_page(argv[1]);

	pinned_to = attack_addr(argv[3]);
	if (argc > 4)
		pinned_hand_over(argv[4], page);
	pthread_barrier_init(&pinned_barrier, NULL, (unsigned int)threads + 1);
	attack_note("page", "ok"); /* what printing takes of memory is there, too */
	if (memory)
		pinned_by_memory(threads);
	else if (strcmp(way, "socket") == 0)
		pinned_by_socket(threads, page);
	else
		pinned_by_epoll(threads, page);
	pthread_barrier_wait(&pinned_barrier);
	attack_hold();
	_exit(0);
}

/* A message with as many descriptors as there may be in one. False if there may be no more. */
static bool pinned_send_many(int to, int file)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * 253)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {"", 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * 253);
	for (int i = 0; i < 253; i++)
		memcpy(CMSG_DATA(c) + i * (int)sizeof(int), &file, sizeof(int));
	if (sendmsg(to, &msg, 0) >= 0)
		return true;
	if (errno != ETOOMANYREFS)
		attack_die("send descriptors");
	return false;
}

/* "in-flight LIMIT": has as many descriptors in messages as its user may, with that limit of files.
 */
static int pinned_in_flight(int argc, char **argv)
{
	struct rlimit limit = {(rlim_t)atoi(argv[argc - 1]), (rlim_t)atoi(argv[argc - 1])};
	int pair[2], sent = 0;

	attack_need("limit", setrlimit(RLIMIT_NOFILE, &limit));
	do {
		if (sent % 50 == 0) /* else there is no room */
			attack_need("pair",
				    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair));
	} while (pinned_send_many(pair[0], STDIN_FILENO) && ++sent);
	attack_note("in flight", "%s", sent * 253 >= atoi(argv[argc - 1]) ? "ok" : "few");
	attack_hold();
	return 0;
}

const struct attack_case pinned_cases[] = {
	{"in-flight", pinned_in_flight},
	{"pin", pinned_pin},
	{0},
};
