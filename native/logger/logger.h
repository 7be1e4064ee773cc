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
 */
#ifndef LOGGER_H
#define LOGGER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* What Docker splits lines at, in bytes: those of longer ones are several entries. */
#define PIECE_MAX 16384

/* options.c */

struct options {
	char path[PATH_MAX];
	off_t max_size; /* bytes; 0 is no limit */
	int max_file;	/* files, with the current one */
	bool compress;
	char agent[PATH_MAX]; /* its socket; "" is none */
	const char *container;
};

/* Says in why[] what is wrong with the command line or the environment. */
bool options_read(struct options *o, int argc, char **argv, char *why, size_t size);

/* lines.c */

/* What lines become, until it is taken. An entry of PIECE_MAX bytes, each of which can
 * take six, fits behind OUTPUT_FULL. */
#define OUTPUT_FULL 65536
#define OUTPUT_SIZE (OUTPUT_FULL + 6 * PIECE_MAX + 256)

struct output {
	size_t used;
	/* Called before an entry is added, may take all there is. */
	void (*make_room)(struct output *);
	char data[OUTPUT_SIZE];
};

/* One of the container's streams. What is left over of a line is at the beginning. */
#define READ_MAX 65536
struct stream {
	int fd;
	const char *name;
	size_t used;
	uint8_t data[PIECE_MAX + READ_MAX];
};

/* Adds entries for all lines of s that are complete, or with end for all that there is;
 * they carry the time now. */
void stream_lines(struct stream *s, struct output *out, struct timespec now, bool end);

/* Adds an entry for a text of ours, as of the stream stderr. */
void output_say(struct output *out, struct timespec now, const char *text);

/* file.c */

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

/* announce.c */

struct announce {
	const struct options *options;
	int fd;		/* of a request that is not answered; -1: none */
	time_t next;	/* when to look again */
	int tries;	/* since the agent is there */
	ino_t known_to; /* the agent's socket where it was heard; 0: none */
};

void announce_begin(struct announce *a, const struct options *o);

/* Called when there is something to log: asks, or asks again, where it is time to. It
 * never waits. */
void announce_try(struct announce *a);

/* Called when a->fd is readable. */
void announce_answer(struct announce *a);

#endif
