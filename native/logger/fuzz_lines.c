// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes, read in pieces of any size: what comes out are whole entries, each a line of
 * printable characters, and their texts are the input, but for bytes that are no UTF-8.
 */
#include "lines.h"

#include <stdlib.h>
#include <string.h>

static uint8_t fuzz_expected[80000];
static size_t fuzz_read;  /* of the input, which came out so far */
static size_t fuzz_input; /* of it, given so far */
static const uint8_t *fuzz_text;

static void fuzz_check(bool good)
{
	if (!good)
		abort();
}

static uint8_t fuzz_hex(const char *p)
{
	const char digits[] = "0123456789abcdef";

	fuzz_check(p[0] && p[1] && strchr(digits, p[0]) && strchr(digits, p[1]));
	return (uint8_t)((strchr(digits, p[0]) - digits) << 4 | (strchr(digits, p[1]) - digits));
}

/* The next byte that was given. */
static uint8_t fuzz_next(void)
{
	fuzz_check(fuzz_read < fuzz_input);
	return fuzz_text[fuzz_read++];
}

/* Compares one escape with the input; says how long it is. */
static size_t fuzz_escape(const char *p)
{
	uint8_t c;

	switch (p[1]) {
	case 'n':
		fuzz_check(fuzz_next() == '\n');
		return 2;
	case 'r':
		fuzz_check(fuzz_next() == '\r');
		return 2;
	case '"':
	case '\\':
		fuzz_check(fuzz_next() == (uint8_t)p[1]);
		return 2;
	}
	fuzz_check(p[1] == 'u');
	if (memcmp(p + 2, "fffd", 4) == 0) {
		fuzz_check(fuzz_next() >= 0x80);
	} else if (memcmp(p + 2, "202", 3) == 0) {
		fuzz_check(fuzz_next() == 0xe2 && fuzz_next() == 0x80);
		c = fuzz_next();
		fuzz_check(p[5] == (c == 0xa8 ? '8' : '9') && (c == 0xa8 || c == 0xa9));
	} else {
		fuzz_check(memcmp(p + 2, "00", 2) == 0);
		c = fuzz_hex(p + 4);
		fuzz_check(c < 0x80 && fuzz_next() == c);
	}
	return 6;
}

static void fuzz_entries(struct output *out)
{
	static const char begin[] = "{\"log\":\"";
	static const char rest[] =
		"\",\"stream\":\"stdout\",\"time\":\"2033-05-18T03:33:20.5Z\"}\n";
	const char *p = out->data, *end = p + out->used;

	while (p < end) {
		size_t before = fuzz_read;

		fuzz_check(end - p >= (ptrdiff_t)(sizeof(begin) + sizeof(rest) - 1));
		fuzz_check(memcmp(p, begin, sizeof(begin) - 1) == 0);
		for (p += sizeof(begin) - 1; *p != '"'; p++) {
			fuzz_check((uint8_t)*p >= 0x20 && *p != '<' && *p != '>' && *p != '&');
			if (*p == '\\')
				p += fuzz_escape(p) - 1;
			else
				fuzz_check(fuzz_next() == (uint8_t)*p);
		}
		fuzz_check(fuzz_read - before <= PIECE_MAX && fuzz_read > before);
		fuzz_check(memcmp(p, rest, sizeof(rest) - 1) == 0);
		p += sizeof(rest) - 1;
	}
	out->used = 0;
}

static void fuzz_make_room(struct output *out)
{
	if (out->used >= OUTPUT_FULL)
		fuzz_entries(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct stream s;
	static struct output out;
	const struct timespec now = {.tv_sec = 2000000000, .tv_nsec = 500000000};
	size_t step, repeat;

	if (size < 3)
		return 0;
	/* Short inputs make long lines by being repeated. */
	step = 1 + (size_t)(data[0] << 8 | data[1]);
	repeat = 1 + data[2];
	data += 3;
	size -= 3;
	fuzz_input = fuzz_read = 0;
	for (size_t i = 0; i < repeat && fuzz_input + size <= sizeof(fuzz_expected); i++) {
		memcpy(fuzz_expected + fuzz_input, data, size);
		fuzz_input += size;
	}
	size = fuzz_input;
	fuzz_text = fuzz_expected;
	if (step < size / 64) /* what is left over is read again each time */
		step = size / 64;
	s.name = "stdout";
	s.used = 0;
	out.used = 0;
	out.make_room = fuzz_make_room;
	for (fuzz_input = 0; fuzz_input < size;) {
		size_t n = size - fuzz_input < step ? size - fuzz_input : step;

		memcpy(s.data + s.used, fuzz_text + fuzz_input, n);
		s.used += n;
		fuzz_input += n;
		stream_lines(&s, &out, now, false);
		fuzz_check(s.used < PIECE_MAX);
	}
	stream_lines(&s, &out, now, true);
	fuzz_entries(&out);
	fuzz_check(fuzz_read == size && s.used == 0);
	return 0;
}
