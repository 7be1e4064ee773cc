// SPDX-License-Identifier: Apache-2.0
/*
 * Lines as Docker's json-file has them: {"log":"TEXT\n","stream":"stdout","time":"..."}.
 * A piece of a longer line, and what comes before the end without a newline, has no \n.
 *
 * One pass copies and escapes. Where a line turns out to be incomplete, what was
 * written of it is taken back: then it is read again, with the rest.
 *
 * What is read is the container's, any bytes. What is written is ASCII or valid UTF-8;
 * other bytes are \ufffd, one for each, as with Docker.
 */
#include "lines.h"

#include <stdio.h>
#include <string.h>

typedef uint8_t lane __attribute__((vector_size(16)));

/* Escaped, besides control characters: as Docker does, after encoding/json. */
static bool line_is_escaped(uint8_t c)
{
	return c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&';
}

/* Copies what stands for itself, 16 bytes at a time; says how many. Up to 15 more bytes
 * of to may be overwritten. */
static size_t line_copy_plain(char *to, const uint8_t *from, size_t size)
{
	size_t n = 0;

	for (; n + sizeof(lane) <= size; n += sizeof(lane)) {
		lane c;
		uint64_t odd[2];

		memcpy(&c, from + n, sizeof(c));
		lane is_odd = (lane)(c < 0x20) | (lane)(c >= 0x80) | (lane)(c == '"') |
			      (lane)(c == '\\') | (lane)(c == '<') | (lane)(c == '>') |
			      (lane)(c == '&');
		memcpy(odd, &is_odd, sizeof(odd));
		if (odd[0] | odd[1])
			break;
		memcpy(to + n, &c, sizeof(c));
	}
	while (n < size && from[n] < 0x80 && !line_is_escaped(from[n])) {
		to[n] = (char)from[n];
		n++;
	}
	return n;
}

/* How many bytes a rune takes that begins with this one; 0: none does. */
static size_t line_rune_size(uint8_t first)
{
	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* The size of the rune at p, which is not ASCII; 0 if there is none: RFC 3629, 4. */
static size_t line_rune(const uint8_t *p, size_t size)
{
	size_t n = line_rune_size(p[0]);

	if (n == 0 || n > size)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

/* Writes the escape of an ASCII character. */
static size_t line_escape(char *to, uint8_t c)
{
	static const char hex[] = "0123456789abcdef";

	to[0] = '\\';
	switch (c) {
	case '"':
	case '\\':
		to[1] = (char)c;
		return 2;
	case '\n':
		to[1] = 'n';
		return 2;
	case '\r':
		to[1] = 'r';
		return 2;
	}
	memcpy(to + 1, "u00", 3);
	to[4] = hex[c >> 4];
	to[5] = hex[c & 15];
	return 6;
}

/* Writes one rune that is not ASCII, or \ufffd for a byte of none; *from is moved. */
static size_t line_copy_rune(char *to, const uint8_t **from, size_t size)
{
	const uint8_t *p = *from;
	size_t n = line_rune(p, size);

	*from += n ? n : 1;
	if (n == 0) {
		memcpy(to, "\\ufffd", 6);
		return 6;
	}
	/* They end lines of JavaScript. */
	if (n == 3 && p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9)) {
		memcpy(to, p[2] == 0xa8 ? "\\u2028" : "\\u2029", 6);
		return 6;
	}
	memcpy(to, p, n);
	return n;
}

/* Writes text up to a newline, or all of it; says how much of the text that was. */
static size_t line_copy(struct output *out, const uint8_t *text, size_t size)
{
	const uint8_t *p = text, *end = text + size;
	char *to = out->data + out->used;

	while (p < end) {
		size_t n = line_copy_plain(to, p, (size_t)(end - p));

		p += n;
		to += n;
		if (p == end || *p == '\n')
			break;
		if (*p < 0x80)
			to += line_escape(to, *p++);
		else
			to += line_copy_rune(to, &p, (size_t)(end - p));
	}
	out->used = (size_t)(to - out->data);
	return (size_t)(p - text);
}

/* A piece ends with a rune, not in one. */
static size_t line_piece(const uint8_t *text)
{
	for (size_t i = 1; i < 4; i++) {
		uint8_t c = text[PIECE_MAX - i];

		if ((c & 0xc0) != 0x80)
			return line_rune_size(c) > i ? PIECE_MAX - i : PIECE_MAX;
	}
	return PIECE_MAX;
}

static void output_add(struct output *out, const char *text, size_t size)
{
	memcpy(out->data + out->used, text, size);
	out->used += size;
}

static const char begin[] = "{\"log\":\"";

/* What is behind the text of entries of one stream and time: the first two characters
 * are for whole lines. */
struct rest {
	size_t size;
	char text[128];
};

/* The time is RFC 3339 with as many digits of a second as it takes. */
static void line_rest(struct rest *r, const char *stream, struct timespec now)
{
	struct tm t;
	size_t n;

	if (!gmtime_r(&now.tv_sec, &t))
		memset(&t, 0, sizeof(t));
	n = (size_t)snprintf(r->text, sizeof(r->text), "\\n\",\"stream\":\"%s\",\"time\":\"",
			     stream);
	n += strftime(r->text + n, sizeof(r->text) - n, "%Y-%m-%dT%H:%M:%S", &t);
	if (now.tv_nsec > 0) {
		n += (size_t)snprintf(r->text + n, sizeof(r->text) - n, ".%09ld", now.tv_nsec);
		while (r->text[n - 1] == '0')
			n--;
	}
	n += (size_t)snprintf(r->text + n, sizeof(r->text) - n, "Z\"}\n");
	r->size = n;
}

void stream_lines(struct stream *s, struct output *out, struct timespec now, bool end)
{
	const uint8_t *p = s->data;
	size_t left = s->used;
	struct rest rest;

	line_rest(&rest, s->name, now);
	while (left > 0) {
		size_t size = left < PIECE_MAX ? left : PIECE_MAX, done, before;

		out->make_room(out);
		before = out->used;
		output_add(out, begin, sizeof(begin) - 1);
		done = line_copy(out, p, size);
		if (done < size) { /* a line, and its newline */
			output_add(out, rest.text, rest.size);
			done++;
		} else if (size == PIECE_MAX || end) {
			if (size == PIECE_MAX && line_piece(p) < size) {
				out->used = before + sizeof(begin) - 1;
				done = line_copy(out, p, line_piece(p));
			}
			output_add(out, rest.text + 2, rest.size - 2);
		} else {
			out->used = before;
			break;
		}
		p += done;
		left -= done;
	}
	memmove(s->data, p, left);
	s->used = left;
}

void output_say(struct output *out, struct timespec now, const char *text)
{
	struct rest rest;

	line_rest(&rest, "stderr", now);
	output_add(out, begin, sizeof(begin) - 1);
	line_copy(out, (const uint8_t *)text, strlen(text));
	output_add(out, rest.text, rest.size);
}
