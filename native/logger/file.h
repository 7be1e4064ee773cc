/* SPDX-License-Identifier: Apache-2.0 */
/* The file that entries are written to. */
#ifndef LOGGER_FILE_H
#define LOGGER_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "options.h"

struct file {
	const struct options *options;
	int fd;
	off_t size;
	pid_t gzip;	   /* 0: none */
	time_t rotate_at;  /* not before, after it failed */
	uint64_t lost;	   /* entries that could not be written */
	int lost_why;	   /* errno */
	time_t lost_again; /* when to try again */
};

/* Opens the file, and makes its folders. -1 and errno if it cannot. */
int file_open(struct file *f, const struct options *o);

/* Writes entries; what cannot be written is counted and said later. */
void file_write(struct file *f, const char *data, size_t size);

/* Tells whether the next entry is for the next file. */
static inline bool file_full(const struct file *f, size_t more)
{
	return f->options->max_size && f->size + (off_t)more >= f->options->max_size;
}

/* Begins the next file. */
void file_rotate(struct file *f);

/* Waits for what is still being compressed. */
void file_close(struct file *f);

#endif
