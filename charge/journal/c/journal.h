/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The undo journal: a file that the agent maps and writes, and that the undo helper
 * maps as well. The agent's side is charge/journal, whose test holds both to this.
 *
 * A page with a header is followed by entries. An entry counts while `valid` is 1,
 * which the agent stores last: what a killed agent had not finished is not looked
 * at. What it changes later is either not looked at before one word says so
 * (`originals`), or does no harm half written (`ours`: a text of length 0).
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
/* charge/bandwidth's HelperGroup. */
#define JOURNAL_SHELF "tsugiki-helpers"

/* In which order entries are undone. */
enum { JOURNAL_THAW = 1, JOURNAL_QUOTA, JOURNAL_BURST, JOURNAL_MOVE };

struct journal_header {
	char magic[8];
	char boot[36]; /* the boot's id: the agent empties the file of another boot */
	uint32_t zero[5];
	_Atomic uint32_t used; /* entries from there on have never been used */
};

struct journal_text {
	_Atomic uint32_t length;
	char bytes[JOURNAL_TEXT - 4];
};

struct journal_entry {
	_Atomic uint32_t valid;
	uint32_t order;
	uint64_t inode;		   /* of the file, or of the group to move from */
	_Atomic uint32_t original; /* which of the two counts */
	uint32_t zero[3];
	char originals[2][JOURNAL_TEXT];
	struct journal_text ours[2];
	char path[JOURNAL_PATH];
	char to[JOURNAL_PATH]; /* JOURNAL_MOVE only */
};

_Static_assert(offsetof(struct journal_header, used) == 64, "the agent's Spare");
_Static_assert(sizeof(struct journal_entry) == 2048, "entries do not straddle pages");

/*
 * Copies an entry and says whether it can be undone: its order is known, its paths
 * are absolute without empty components, "." or "..", and its texts end. What is left in
 * `ours` has a length below JOURNAL_TEXT - 4 and a zero byte after it.
 */
bool journal_read(const struct journal_entry *shared, struct journal_entry *entry);

#endif
