// SPDX-License-Identifier: Apache-2.0
/*
 * tsugiki-undo: undoes what the agent did to cgroups when the agent ends.
 *
 * Theory of operation. The agent starts it with one end of a socket, of which only
 * the agent has the other, and with the undo journal, whose lock is that
 * of the open file and so held by both. The undo helper greets, and sleeps until the
 * socket ends. Then it undoes every entry, those first that cannot wait, says how
 * many (to an agent that is still there: it only shut its side down), and ends.
 *
 * It is in a session of its own and ignores signals: only SIGKILL ends it early,
 * and then the agent, or the next one, starts another.
 */
#define _GNU_SOURCE
#include "../../../native/privilege/privilege.h"
#include "calls.h"
#include "undo_helper.h"
#include "undo.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNDO_HELPER_CONTROL 3
#define UNDO_HELPER_FILE    4

/* Groups that were delegated to a user are that user's, and moving somebody else's
 * process between groups that have a cpuset takes the right to say where it runs. */
#define UNDO_HELPER_CAP_DAC_OVERRIDE 1
#define UNDO_HELPER_CAP_SYS_NICE     23
#define UNDO_HELPER_KEEP	     (1ull << UNDO_HELPER_CAP_DAC_OVERRIDE | 1ull << UNDO_HELPER_CAP_SYS_NICE)

/* What happened, and the first failure of all. */
struct undo_helper_work {
	struct undo_helper_report report;
	int error;
	char path[JOURNAL_PATH];
};

static struct journal_header *undo_helper_map(void)
{
	const size_t size = JOURNAL_HEADER + JOURNAL_CAPACITY * sizeof(struct journal_entry);
	struct journal_header *header;
	struct stat st;

	if (fstat(UNDO_HELPER_FILE, &st) != 0)
		privilege_die("use journal");
	errno = EINVAL;
	if (!S_ISREG(st.st_mode) || st.st_size < (off_t)size)
		privilege_die("use journal");
	header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, UNDO_HELPER_FILE, 0);
	if (header == MAP_FAILED)
		privilege_die("map journal");
	errno = EINVAL;
	if (memcmp(header->magic, JOURNAL_MAGIC, sizeof(header->magic)) != 0)
		privilege_die("use journal");
	return header;
}

/* Ends with the agent, not with the terminal, the session or the service. */
static void undo_helper_ignore_signals(void)
{
	static const int ignored[] = {SIGHUP,  SIGINT,	SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1,
				      SIGUSR2, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU, 0};

	for (const int *sig = ignored; *sig != 0; sig++)
		(void)signal(*sig, SIG_IGN);
}

static void undo_helper_await_end(void)
{
	struct undo_helper_report hello = {.version = UNDO_HELPER_VERSION};
	char byte;
	ssize_t n;

	if (send(UNDO_HELPER_CONTROL, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 && errno != EPIPE)
		privilege_die("greet");
	do {
		n = read(UNDO_HELPER_CONTROL, &byte, 1);
	} while (n > 0 || (n < 0 && errno == EINTR));
}

static void undo_helper_undo(struct journal_entry *shared, struct undo_helper_work *work)
{
	struct journal_entry entry;
	enum undo_outcome outcome = UNDO_FAILED;

	bool whole = journal_read(shared, &entry);

	errno = EBADMSG;
	if (whole)
		outcome = undo_entry(&entry);
	if (outcome == UNDO_FAILED) {
		if (work->report.failed++ == 0) {
			work->error = errno;
			memcpy(work->path, entry.path, sizeof(work->path));
			work->path[sizeof(work->path) - 1] = '\0';
		}
		if (whole)
			return; /* the next agent tries again */
	}
	if (outcome == UNDO_DONE)
		work->report.undone++;
	atomic_store(&shared->valid, 0);
}

static void undo_helper_undo_all(struct journal_header *header, struct undo_helper_work *work)
{
	struct journal_entry *entries = (void *)((char *)header + JOURNAL_HEADER);
	uint32_t used = atomic_load(&header->used);

	if (used > JOURNAL_CAPACITY)
		used = JOURNAL_CAPACITY;
	/* Damaged entries, of no known order, come last. */
	for (uint32_t order = JOURNAL_THAW; order <= JOURNAL_MOVE + 1; order++) {
		for (uint32_t i = 0; i < used; i++) {
			uint32_t turn = entries[i].order;

			if (turn < JOURNAL_THAW || turn > JOURNAL_MOVE)
				turn = JOURNAL_MOVE + 1;
			if (turn == order && atomic_load(&entries[i].valid) != 0)
				undo_helper_undo(&entries[i], work);
		}
	}
}

static void undo_helper_say(const struct undo_helper_work *work)
{
	char text[JOURNAL_PATH + 128];

	/* An agent that is there reads it, and says it itself. If it is not, the next
	 * one need not wait until somebody reads what is said here. */
	if (send(UNDO_HELPER_CONTROL, &work->report, sizeof(work->report), MSG_NOSIGNAL) < 0) {
		(void)flock(UNDO_HELPER_FILE, LOCK_UN);
		(void)snprintf(text, sizeof(text), "tsugiki-undo: agent ended; undone: %u\n",
			       work->report.undone);
		privilege_say(text);
	}
	if (work->report.failed > 0) {
		(void)snprintf(text, sizeof(text), "tsugiki-undo: undo %s: %s (failed: %u)\n",
			       work->path, strerror(work->error), work->report.failed);
		privilege_say(text);
	}
}

int main(void)
{
	struct undo_helper_work work = {.report.version = UNDO_HELPER_VERSION};
	struct journal_header *header;

	undo_helper_ignore_signals();
	header = undo_helper_map();
	privilege_drop_bounding(UNDO_HELPER_KEEP);
	privilege_drop_capabilities(UNDO_HELPER_KEEP);
	privilege_seal();
	privilege_confine(undo_helper_calls,
			  sizeof(undo_helper_calls) / sizeof(*undo_helper_calls));
	if (syscall(SYS_close_range, UNDO_HELPER_FILE + 1, ~0U, 0) != 0 ||
	    syscall(SYS_close_range, 0, 1, 0) != 0)
		privilege_die("close descriptors");
	undo_helper_await_end();
	undo_helper_undo_all(header, &work);
	undo_helper_say(&work);
	return work.report.failed > 0;
}
