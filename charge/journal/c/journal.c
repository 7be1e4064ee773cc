// SPDX-License-Identifier: Apache-2.0
#include "journal.h"

#include <string.h>

static bool journal_is_dots(const char *name, size_t length)
{
	return name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.'));
}

static bool journal_path_is_proper(const char path[JOURNAL_PATH])
{
	if (path[0] != '/' || memchr(path, 0, JOURNAL_PATH) == NULL)
		return false;
	while (*path != '\0') {
		size_t length = strcspn(++path, "/");

		if (length == 0 || journal_is_dots(path, length))
			return false;
		path += length;
	}
	return true;
}

bool journal_read(const struct journal_entry *shared, struct journal_entry *entry)
{
	memcpy(entry, shared, sizeof(*entry));
	if (entry->order < JOURNAL_THAW || entry->order > JOURNAL_MOVE ||
	    !journal_path_is_proper(entry->path))
		return false;
	if (entry->order == JOURNAL_MOVE)
		return journal_path_is_proper(entry->to);
	if (entry->original > 1)
		return false;
	for (int i = 0; i < 2; i++) {
		struct journal_text *text = &entry->ours[i];

		if (text->length >= sizeof(text->bytes))
			return false;
		text->bytes[text->length] = '\0';
	}
	return entry->originals[entry->original][0] != '\0' &&
	       memchr(entry->originals[entry->original], 0, JOURNAL_TEXT) != NULL;
}
