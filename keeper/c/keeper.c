// SPDX-License-Identifier: Apache-2.0
/*
 * tsugiki-keeper: makes sockets for one container.
 *
 * Theory of operation
 * -------------------
 * A socket belongs for life to the network namespace, the cgroup and the user
 * of the process that made it. The supervisor of a container therefore starts
 * one keeper in the host's network namespace and in the container's cgroup
 * (where cgroup/BPF programs enforce what the container may do), lets it take
 * the container's user id (which the host's firewall may match on), and asks
 * it for sockets. The keeper makes them, hands them over and keeps none. It
 * never reads anything that the container wrote: socket(2)'s arguments reach
 * it by value, and everything else comes from the supervisor.
 *
 * It has a second use. The kernel keeps an epoll registration by open file and descriptor number,
 * and looks the number up in the table of the process that calls epoll_ctl(2). The program's own
 * EPOLL_CTL_MOD and EPOLL_CTL_DEL have to find the registration. So the keeper makes the call, with
 * the socket at the program's number during the call. epoll_ctl(2) takes the instance's mutex,
 * which a program may hold for as long as it likes (epoll_wait(2) into memory whose faults it
 * serves itself). Such a program blocks only its own keeper. It also delays its own end if the
 * supervisor dies meanwhile, but the BPF programs of its cgroup stay in force.
 *
 * Started with
 *   fd 3      the control socket, see protocol.h
 *   fd 4      an eventfd for what it lends, see there
 *   fd 5      with --kill: the container's cgroup.kill, open for writing
 *   --uid N --gid N   the user and group to become
 *
 * States
 *   starting  gives up privileges, ends with KEEPER_HELLO; any failure is a
 *             line on stderr and exit status 1 (2 for usage)
 *   serving   one request, one reply, never two requests at once
 *   gone      the supervisor's end is closed: kills the container's cgroup if
 *             it was given one, exits. A container must not run on without
 *             the one who answers its system calls.
 *
 * Invariants while serving
 *   - Between two requests the descriptor table holds the control socket, the
 *     eventfd and the kill descriptor, and nothing else, not even 0 to 2. Each may
 *     have any number: they move out of the way of a number that epoll needs.
 *   - No system calls but what it serves with (calls.h).
 *   - No capability, no way to gain one, not dumpable, so that a container
 *     with the same user id can neither trace it nor take its descriptors.
 *   - One thread, no heap. Nothing waits but the reads of requests, the
 *     writes of answers, the return of a loan, and epoll_ctl(2) as said above.
 *
 * Needs Linux 5.14 (cgroup.kill; close_range is 5.9). Start it with
 * CAP_SETPCAP, CAP_SETUID and CAP_SETGID, or with no capabilities and no ids.
 */
#define _GNU_SOURCE
#include "protocol.h"
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* A received request, before it is checked. */
struct keeper_incoming {
	unsigned char bytes[sizeof(struct keeper_request)];
	size_t length;
	int fds[KEEPER_FDS_MAX];
	unsigned int fd_count;
};

static bool keeper_supervisor_gone(const struct keeper *k)
{
	struct pollfd p = {.fd = k->control};

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static int keeper_send(const struct keeper *k, struct msghdr *msg)
{
	ssize_t n;

	do {
		n = sendmsg(k->control, msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -1 : 0;
}

/*
 * A supervisor that is there but cannot be answered would wait for ever. The keeper ends, which the
 * supervisor notices. If the supervisor has gone, the next read notices that.
 */
static void keeper_answer(const struct keeper *k, struct keeper_reply *reply)
{
	struct iovec iov = {reply, sizeof(*reply)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (keeper_send(k, &msg) != 0 && !keeper_supervisor_gone(k))
		_exit(1);
}

static int keeper_send_files(const struct keeper *k, const int *fds, unsigned int fd_count)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * KEEPER_BATCH_MAX)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {"", 1};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = CMSG_SPACE(sizeof(int) * fd_count)};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
	memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * fd_count);
	return keeper_send(k, &msg);
}

/* Waits until the supervisor has taken the lent sockets, or has gone. */
static void keeper_await_return(const struct keeper *k)
{
	struct pollfd p[] = {{.fd = k->returned, .events = POLLIN}, {.fd = k->control}};
	uint64_t times;

	do {
		p[0].revents = p[1].revents = 0;
		(void)poll(p, 2, -1);
	} while (p[0].revents == 0 && p[1].revents == 0);
	if (p[0].revents != 0 && read(k->returned, &times, sizeof(times)) < 0)
		_exit(1);
}

static int keeper_lend(const struct keeper *k, const int *fds, unsigned int fd_count)
{
	struct keeper_loan loan = {.version = KEEPER_VERSION, .count = fd_count};
	struct iovec iov = {&loan, sizeof(loan)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	memcpy(loan.numbers, fds, sizeof(*fds) * fd_count);
	if (keeper_send(k, &msg) != 0)
		return -1;
	keeper_await_return(k);
	return 0;
}

static int keeper_hand_over(const struct keeper *k, const int *fds, unsigned int fd_count)
{
	if (keeper_send_files(k, fds, fd_count) == 0)
		return 0;
	return errno == ETOOMANYREFS ? keeper_lend(k, fds, fd_count) : -1;
}

static void keeper_close_all(const int *fds, unsigned int fd_count)
{
	for (unsigned int i = 0; i < fd_count; i++)
		close(fds[i]);
}

static void keeper_serve_sockets(const struct keeper *k, const struct keeper_request *request,
				 struct keeper_reply *reply)
{
	int fds[KEEPER_BATCH_MAX];
	unsigned int made = 0;

	for (; made < request->count; made++) {
		fds[made] =
			socket(request->family, request->type | SOCK_CLOEXEC, request->protocol);
		if (fds[made] < 0) {
			/* EMFILE is about our table, not the program's. */
			reply->error = errno;
			reply->status = errno == EMFILE ? KEEPER_FAULT : KEEPER_REFUSED;
			break;
		}
	}
	if (made > 0 && keeper_hand_over(k, fds, made) != 0) {
		reply->status = KEEPER_FAULT;
		reply->error = errno;
	} else {
		reply->count = made;
	}
	/*
	 * The sockets are closed before the answer: once the program has a socket, its close(2) has
	 * to end the socket. A reference of the keeper would keep the port for a moment longer.
	 */
	keeper_close_all(fds, made);
	keeper_answer(k, reply);
}

/*
 * Puts the socket fds[1] at NUMBER. If a file of the keeper has that number, it moves first;
 * nothing else can be there. On failure NUMBER is closed, or is still the file that k and fds say.
 */
static int keeper_place(struct keeper *k, int fds[2], int number)
{
	int *held[] = {&k->control, &k->returned, &k->kill, &fds[0]};

	if (fds[1] == number)
		return 0;
	for (unsigned int i = 0; i < sizeof(held) / sizeof(*held); i++) {
		int moved;

		if (*held[i] != number)
			continue;
		moved = fcntl(number, F_DUPFD_CLOEXEC, 0);
		if (moved < 0)
			return -1;
		*held[i] = moved;
		close(number);
	}
	return dup3(fds[1], number, O_CLOEXEC) < 0 ? -1 : 0;
}

static void keeper_serve_epoll(struct keeper *k, const struct keeper_request *request, int fds[2],
			       struct keeper_reply *reply)
{
	int op = request->op == KEEPER_EPOLL_ADD ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
	struct epoll_event event = {.events = request->events, .data.u64 = request->data};

	if (keeper_place(k, fds, request->number) != 0) {
		reply->status = KEEPER_FAULT;
		/* dup3(2) calls a number beyond the limit a bad one. */
		reply->error = errno == EBADF ? EMFILE : errno;
		return;
	}
	if (epoll_ctl(fds[0], op, request->number, &event) != 0) {
		reply->status = KEEPER_REFUSED;
		reply->error = errno;
	}
	/* Not the last reference to the file, so the registration stays. */
	if (fds[1] != request->number)
		close(request->number);
}

static void keeper_serve_request(struct keeper *k, struct keeper_incoming *in)
{
	struct keeper_request request;
	struct keeper_reply reply = {.version = KEEPER_VERSION};

	reply.error = keeper_parse(in->bytes, in->length, in->fd_count, &request);
	reply.tag = request.tag;
	if (reply.error != 0) {
		reply.status = KEEPER_MALFORMED;
		keeper_answer(k, &reply);
		keeper_close_all(in->fds, in->fd_count);
		return;
	}
	reply.op = request.op;
	if (request.op == KEEPER_SOCKETS) {
		keeper_serve_sockets(k, &request, &reply);
		return;
	}
	keeper_serve_epoll(k, &request, in->fds, &reply);
	/* The files are closed before the answer, because the supervisor may check that. */
	keeper_close_all(in->fds, in->fd_count);
	keeper_answer(k, &reply);
}

/*
 * Waits for a request. Returns false once the supervisor has gone. The read then returns an end of
 * file, as for a message of no bytes, or ECONNRESET if the supervisor left answers unread. So the
 * socket's state decides.
 */
static bool keeper_receive(const struct keeper *k, struct keeper_incoming *in)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * KEEPER_FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = {in->bytes, sizeof(in->bytes)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.space,
			     .msg_controllen = sizeof(control.space)};
	struct cmsghdr *cmsg;
	ssize_t n;

	do {
		n = recvmsg(k->control, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && !keeper_supervisor_gone(k))
		_exit(1);
	if (n < 0)
		return false;

	/* The kernel cuts what exceeds the space: at most this one header. */
	cmsg = CMSG_FIRSTHDR(&msg);
	in->fd_count = 0;
	if (cmsg != NULL && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
		size_t size = cmsg->cmsg_len - CMSG_LEN(0);

		in->fd_count = (unsigned int)(size / sizeof(int));
		memcpy(in->fds, CMSG_DATA(cmsg), size);
	}
	/* A truncated message is malformed, like one without bytes. */
	in->length = msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : (size_t)n;
	if (n == 0 && in->fd_count == 0 && keeper_supervisor_gone(k))
		return false;
	return true;
}

static int keeper_kill_container(const struct keeper *k)
{
	ssize_t n;

	if (k->kill < 0)
		return 0;
	do {
		n = write(k->kill, "1", 1);
	} while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct keeper k = {.control = 3, .returned = 4, .kill = -1};
	struct keeper_reply hello = {.version = KEEPER_VERSION, .op = KEEPER_HELLO};
	struct keeper_incoming in;

	keeper_arguments(&k, argc, argv);
	keeper_start(&k);
	keeper_answer(&k, &hello);
	while (keeper_receive(&k, &in))
		keeper_serve_request(&k, &in);
	return keeper_kill_container(&k);
}
