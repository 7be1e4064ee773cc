/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a container as entries of JSON, in memory. */
#ifndef LOGGER_LINES_H
#define LOGGER_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* What Docker splits lines at, in bytes: those of longer ones are several entries. */
#define PIECE_MAX 16384

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

#endif
