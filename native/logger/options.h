/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of tsugiki-log. */
#ifndef LOGGER_OPTIONS_H
#define LOGGER_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct options {
	char path[PATH_MAX];
	off_t max_size; /* bytes; 0 is no limit */
	int max_file;	/* files, with the current one */
	bool compress;
	char agent[PATH_MAX]; /* its socket; "" is none */
	const char *container;
};

/* Prints a help text if the command line asks for it. */
bool options_help(int argc, char **argv);

/* Says in why[] what is wrong with the command line or the environment. */
bool options_read(struct options *o, int argc, char **argv, char *why, size_t size);

#endif
