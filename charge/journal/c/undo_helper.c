// SPDX-License-Identifier: Apache-2.0
/*
 * tsugiki-undo undoes the agent's changes to cgroups when the agent ends.
 *
 * Theory of operation. The agent starts it with the undo journal and one end of a socket. Only the
 * agent has the other end. The lock of the journal belongs to the open file, so both processes hold
 * it. The undo helper sends a greeting and waits for the end of the socket. Then it undoes every
 * entry, the urgent ones first, and sends the number of undone entries. An agent that has only shut
 * down its side of the socket reads that number. Then the undo helper exits.
 *
 * It has a session of its own and ignores signals. Only SIGKILL ends it early. The agent, or the
 * next agent, then starts another one.
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

/* The capabilities that the undo helper keeps: to write to groups that were delegated to a user,
 * and to move another user's process between groups that have a cpuset. */
#define UNDO_HELPER_CAP_DAC_OVERRIDE 1
#define UNDO_HELPER_CAP_SYS_NICE     23
#define UNDO_HELPER_KEEP	     (1ull << UNDO_HELPER_CAP_DAC_OVERRIDE | 1ull << UNDO_HELPER_CAP_SYS_NICE)

/* The counts of the work, and the error and path of the first failure. */
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

/* The end of the terminal, the session or the service does not end the undo helper. */
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
	/* Damaged entries have no known order, and come last. */
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

	/* If the agent exists, it reads the report and logs it. If it does not, the lock is
	 * released first, so that the next agent need not wait until somebody reads these
	 * messages. */
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
