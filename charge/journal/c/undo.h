/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TSUGIKI_UNDO_H
#define TSUGIKI_UNDO_H

#include "journal.h"

enum undo_outcome {
	UNDO_DONE,
	UNDO_NOTHING, /* the group was removed, or somebody else has written the file */
	UNDO_FAILED,  /* errno says why */
};

/* Undoes an entry that journal_read() has accepted. */
enum undo_outcome undo_entry(const struct journal_entry *entry);

#endif
