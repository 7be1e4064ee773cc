// SPDX-License-Identifier: Apache-2.0
/*
 * tsugiki-log: what a container prints, as files in the format of Docker's json-file.
 *
 * Its parts: options.c reads the command line; lines.c makes JSON of what was read, in
 * memory; file.c writes it, rotates, and outlives a full disk; announce.c tells the
 * agent whose CPU time this is; logger.c is the loop.
 *
 * In C for what it costs: there is one for each container, and most of its time goes
 * into being woken for a line. It needs no privileges but to write its files. Linux 5.4.
 *
 * Theory of operation. containerd's shim starts this with the reading ends of the
 * container's standard output and error as descriptors 3 and 4, and waits until 5 is
 * closed. One thread waits for either, reads what there is, and writes all entries that
 * makes at once. It ends at the end of both streams, or when it is told to (SIGTERM),
 * which the shim does when the container is deleted: then it takes what is there.
 *
 * Whatever happens to the file or the agent, it goes on reading: a container whose pipe
 * is full stands still, and one whose pipe has no reader is killed (SIGPIPE).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <syslog.h>
#include <unistd.h>

#include "../privilege/privilege.h"
#include "announce.h"
#include "file.h"
#include "lines.h"
#include "options.h"

enum { FD_STDOUT = 3, FD_STDERR, FD_READY };

/* The shim waits 12 seconds after SIGTERM, then it kills. */
#define DRAIN_SECONDS 5

/* The shim starts this with all that it has itself. The folder may be somebody's own, and the
 * agent hears only who may configure the network. */
#define LOGGER_CAP_DAC_OVERRIDE 1
#define LOGGER_CAP_NET_ADMIN	12
#define LOGGER_KEEP		(1ull << LOGGER_CAP_DAC_OVERRIDE | 1ull << LOGGER_CAP_NET_ADMIN)

static struct options options;
static struct file file;
static struct announce announce;
static struct stream streams[2];
static struct output output;

static void logger_flush(struct output *out)
{
	if (out->used > 0)
		file_write(&file, out->data, out->used);
	out->used = 0;
}

static void logger_make_room(struct output *out)
{
	bool full = file_full(&file, out->used);

	if (full || out->used >= OUTPUT_FULL)
		logger_flush(out);
	if (full)
		file_rotate(&file);
}

/* Reads what there is, once; false if there is nothing now. At the end the descriptor is
 * closed. */
static bool logger_take(struct stream *s)
{
	ssize_t n = read(s->fd, s->data + s->used, READ_MAX);
	struct timespec now;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	clock_gettime(CLOCK_REALTIME, &now);
	if (n > 0)
		s->used += (size_t)n;
	stream_lines(s, &output, now, n <= 0);
	if (n <= 0) {
		close(s->fd);
		s->fd = -1;
	}
	return n > 0;
}

/* Takes what is in the pipes, though somebody may still hold them. */
static void logger_drain(void)
{
	time_t last = time(NULL) + DRAIN_SECONDS;
	struct timespec now;

	for (int i = 0; i < 2; i++) {
		struct stream *s = &streams[i];

		while (s->fd >= 0 && time(NULL) <= last && logger_take(s))
			;
		clock_gettime(CLOCK_REALTIME, &now);
		stream_lines(s, &output, now, true);
	}
}

static void logger_run(int signals)
{
	while (streams[0].fd >= 0 || streams[1].fd >= 0) {
		struct pollfd fds[] = {{.fd = streams[0].fd, .events = POLLIN},
				       {.fd = streams[1].fd, .events = POLLIN},
				       {.fd = announce.fd, .events = POLLIN},
				       {.fd = signals, .events = POLLIN}};

		if (poll(fds, 4, -1) < 0)
			continue;
		for (int i = 0; i < 2; i++)
			if (fds[i].revents)
				logger_take(&streams[i]);
		logger_flush(&output);
		if (fds[2].revents)
			announce_answer(&announce);
		if (fds[3].revents) {
			logger_drain();
			break;
		}
		if (fds[0].revents || fds[1].revents)
			announce_try(&announce);
	}
	logger_flush(&output);
}

static int logger_fail(const char *why)
{
	fprintf(stderr, "tsugiki-log: %s\n", why);
	/* The shim shows nobody what we say. */
	openlog("tsugiki-log", LOG_PID, LOG_DAEMON);
	syslog(LOG_ERR, "%s", why);
	return 1;
}

int main(int argc, char **argv)
{
	char why[PATH_MAX + 128];
	sigset_t end;
	int signals;
	bool awaited = fcntl(FD_READY, F_SETFD, FD_CLOEXEC) == 0; /* not so if run by hand */

	if (options_help(argc, argv))
		return fflush(stdout) == 0 ? 0 : 1;
	output.make_room = logger_make_room;
	streams[0].fd = FD_STDOUT;
	streams[0].name = "stdout";
	streams[1].fd = FD_STDERR;
	streams[1].name = "stderr";
	if (!options_read(&options, argc, argv, why, sizeof(why)))
		return logger_fail(why) + 1; /* usage */
	for (int i = 0; i < 2; i++)
		if (fcntl(streams[i].fd, F_SETFL, O_NONBLOCK) < 0 ||
		    fcntl(streams[i].fd, F_SETFD, FD_CLOEXEC) < 0)
			return logger_fail("descriptors 3 and 4 are not the container's output");
	if (file_open(&file, &options) < 0) {
		snprintf(why, sizeof(why), "open %s: %s", options.path, strerror(errno));
		return logger_fail(why);
	}
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL);
	signals = signalfd(-1, &end, SFD_CLOEXEC);
	if (signals < 0)
		return logger_fail("signalfd");
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGCHLD, SIG_IGN); /* waitpid(2) still waits */
	/* Before the first byte that the container has printed. */
	privilege_drop_bounding(LOGGER_KEEP);
	privilege_drop_capabilities(LOGGER_KEEP);
	privilege_seal();
	if (awaited)
		close(FD_READY);
	announce_begin(&announce, &options);
	logger_run(signals);
	file_close(&file);
	return 0;
}
