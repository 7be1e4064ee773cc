// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer target. For any input, journal_read() must not touch memory outside of the entry, and
 * an entry that it accepts must satisfy the assumptions of undo.c.
 */
#include "journal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_path(const char path[JOURNAL_PATH])
{
	size_t length = strnlen(path, JOURNAL_PATH);

	if (length < 2 || length == JOURNAL_PATH || path[0] != '/' || path[length - 1] == '/' ||
	    strstr(path, "//") != NULL || strstr(path, "/./") != NULL ||
	    strstr(path, "/../") != NULL)
		abort();
	if (strcmp(path + length - 2, "/.") == 0 ||
	    (length > 2 && strcmp(path + length - 3, "/..") == 0))
		abort();
}

/* The input is one byte each for order, original and the two lengths, and then the bytes of both
 * the path and the texts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct journal_entry *shared = calloc(1, sizeof(*shared)), entry;
	size_t rest = size < 4 ? 0 : size - 4;

	if (shared == NULL || size < 4) {
		free(shared);
		return 0;
	}
	memcpy(shared->path, data + 4, rest < JOURNAL_PATH ? rest : JOURNAL_PATH);
	memcpy(shared->to, data + 4, rest < JOURNAL_PATH ? rest : JOURNAL_PATH);
	for (int i = 0; i < 2; i++) {
		memcpy(shared->originals[i], data + 4, rest < JOURNAL_TEXT ? rest : JOURNAL_TEXT);
		shared->ours[i].length = data[2 + i];
	}
	shared->order = data[0];
	shared->original = data[1];
	if (journal_read(shared, &entry)) {
		fuzz_path(entry.path);
		if (entry.order == JOURNAL_MOVE) {
			fuzz_path(entry.to);
		} else if (entry.order < JOURNAL_THAW || entry.order > JOURNAL_MOVE ||
			   entry.original > 1 ||
			   strnlen(entry.originals[entry.original], JOURNAL_TEXT) == JOURNAL_TEXT ||
			   strlen(entry.ours[0].bytes) > entry.ours[0].length ||
			   strlen(entry.ours[1].bytes) > entry.ours[1].length) {
			abort();
		}
	}
	free(shared);
	return 0;
}
