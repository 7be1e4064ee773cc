/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of the undo journal. The agent maps the file and writes it. The undo helper maps it,
 * too. The agent's side is the Go package charge/journal. A test of that package compares the two.
 *
 * A header in the first page is followed by entries. An entry is valid while `valid` is 1. The
 * agent stores `valid` last, so entries that a killed agent had not finished are ignored. The agent
 * changes a valid entry without harm: a new original counts only after the store of `original`, and
 * a text in `ours` has length 0 while it is written.
 */
#ifndef TSUGIKI_JOURNAL_H
#define TSUGIKI_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_MAGIC	 "tsugiUN1"
#define JOURNAL_HEADER	 4096
#define JOURNAL_CAPACITY 16384
#define JOURNAL_PATH	 880
#define JOURNAL_TEXT	 64
/* The same as HelperGroup of charge/bandwidth. */
#define JOURNAL_SHELF "tsugiki-helpers"

/* The kinds of entries, in the order in which they are undone. */
enum { JOURNAL_THAW = 1, JOURNAL_QUOTA, JOURNAL_BURST, JOURNAL_MOVE };

struct journal_header {
	char magic[8];
	char boot[36]; /* id of the boot: the agent empties a file of an earlier boot */
	uint32_t zero[5];
	_Atomic uint32_t used; /* later entries have never been used */
};

struct journal_text {
	_Atomic uint32_t length;
	char bytes[JOURNAL_TEXT - 4];
};

struct journal_entry {
	_Atomic uint32_t valid;
	uint32_t order;
	uint64_t inode;		   /* of the file, or of the group to move from */
	_Atomic uint32_t original; /* index of the valid element of originals */
	uint32_t zero[3];
	char originals[2][JOURNAL_TEXT];
	struct journal_text ours[2];
	char path[JOURNAL_PATH];
	char to[JOURNAL_PATH]; /* JOURNAL_MOVE only */
};

_Static_assert(offsetof(struct journal_header, used) == 64, "the agent's Spare");
_Static_assert(sizeof(struct journal_entry) == 2048, "entries do not straddle pages");

/*
 * Copies an entry and tells whether it can be undone: its order is known, its paths are absolute
 * without empty components, "." or "..", and its texts are terminated. Each text in `ours` then has
 * a length below JOURNAL_TEXT - 4 and a zero byte after it.
 */
bool journal_read(const struct journal_entry *shared, struct journal_entry *entry);

#endif
