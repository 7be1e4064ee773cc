// SPDX-License-Identifier: Apache-2.0
/* The command line of tsugiki-load, see load.h. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

void load_die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(1);
}

void load_usage(void)
{
	fputs("usage: load stencil [-g XxYxZ] [-s SECONDS | -i ITERATIONS] | "
	      "web -n REQUESTS [-r SEED] ADDR:PORT... | serve PORT | at FILE COMMAND... | idle\n",
	      stderr);
	exit(2);
}

uint64_t load_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

long load_number(const char *text, long min, long max)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < min || n > max)
		load_usage();
	return n;
}

static void load_end(int signal)
{
	(void)signal;
	_exit(0);
}

/*
 * A signal without a handler does not end the first program of a PID namespace. Orphaned processes
 * become its children.
 */
void load_handle_end(void)
{
	signal(SIGTERM, load_end);
	signal(SIGCHLD, SIG_IGN);
}

void load_say_ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* A container's first program, in whose container other programs are executed. */
static _Noreturn void load_idle(void)
{
	load_handle_end();
	load_say_ready();
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc < 2)
		load_usage();
	if (!strcmp(argv[1], "stencil"))
		return load_stencil(argc - 1, argv + 1);
	if (!strcmp(argv[1], "web"))
		return load_web(argc - 1, argv + 1);
	if (!strcmp(argv[1], "serve"))
		return load_serve(argc - 1, argv + 1);
	if (!strcmp(argv[1], "at"))
		return load_at(argc - 1, argv + 1);
	if (!strcmp(argv[1], "idle") && argc == 2)
		load_idle();
	load_usage();
}
