// SPDX-License-Identifier: Apache-2.0
/*
 * The agent charges the container for this process from when it knows of it: POST
 * /v1/charge/helpers of docs/API.md. Logging neither waits for the agent nor ends for
 * want of one. Its answer is awaited with everything else; it is asked again only when
 * there is something to log, so that who does not log costs nothing: an agent may come
 * later, or another one, whose socket is another file.
 */
#define _GNU_SOURCE
#include "announce.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* An agent may have to look for the container first: asked so often each second, and
 * then at longer intervals, in seconds. */
#define TRIES_SOON 60
#define LATER	   10

void announce_begin(struct announce *a, const struct options *o)
{
	memset(a, 0, sizeof(*a));
	a->options = o;
	a->fd = -1;
	announce_try(a);
}

static void announce_hang_up(struct announce *a)
{
	if (a->fd >= 0)
		close(a->fd);
	a->fd = -1;
}

/* Connects by a path that fits into struct sockaddr_un, however long that of the folder
 * is. */
static int announce_dial(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	char dir[PATH_MAX], base[PATH_MAX];
	int fd = -1, folder, n;

	strcpy(dir, path);
	strcpy(base, path);
	folder = open(dirname(dir), O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return -1;
	n = snprintf(to.sun_path, sizeof(to.sun_path), "/proc/self/fd/%d/%s", folder,
		     basename(base));
	if (n > 0 && (size_t)n < sizeof(to.sun_path))
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
		close(fd);
		fd = -1;
	}
	close(folder);
	return fd;
}

/* It is one write to a socket with nothing in it, and options.c has checked the name. */
static bool announce_ask(int fd, const char *container)
{
	char body[256], request[512];
	int size, n;

	size = snprintf(
		body, sizeof(body),
		"{\"helper\":{\"pid\":%d},\"to\":\"%s\",\"source\":\"logger\",\"by\":\"auto\"}",
		getpid(), container);
	n = snprintf(request, sizeof(request),
		     "POST /v1/charge/helpers HTTP/1.1\r\nHost: tsugiki\r\nConnection: close\r\n"
		     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		     size, body);
	return send(fd, request, (size_t)n, MSG_NOSIGNAL) == n;
}

void announce_try(struct announce *a)
{
	struct timespec now;
	struct stat st;

	if (!a->options->agent[0])
		return;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec < a->next)
		return;
	announce_hang_up(a); /* it was not answered in time */
	a->next = now.tv_sec + LATER;
	if (stat(a->options->agent, &st) < 0) {
		a->tries = 0;
		a->known_to = 0;
		return;
	}
	if (st.st_ino == a->known_to && st.st_ctim.tv_sec == a->known_since.tv_sec &&
	    st.st_ctim.tv_nsec == a->known_since.tv_nsec)
		return;
	if (a->tries < TRIES_SOON) {
		a->tries++;
		a->next = now.tv_sec + 1;
	}
	a->fd = announce_dial(a->options->agent);
	if (a->fd >= 0 && !announce_ask(a->fd, a->options->container))
		announce_hang_up(a);
}

void announce_answer(struct announce *a)
{
	char text[16];
	ssize_t n = recv(a->fd, text, sizeof(text), 0);
	struct stat st;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* HTTP/1.1 201 Created */
	if (n >= 12 && memcmp(text, "HTTP/1.", 7) == 0 && text[9] == '2' &&
	    stat(a->options->agent, &st) == 0) {
		a->known_to = st.st_ino;
		a->known_since = st.st_ctim;
		a->tries = 0;
	}
	announce_hang_up(a);
}
