// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "privilege.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From linux/capability.h, which a C library need not come with. */
#define PRIVILEGE_CAP_VERSION_3 0x20080522
#define PRIVILEGE_CAP_SETPCAP	8

struct privilege_header {
	uint32_t version;
	int pid;
};

struct privilege_sets {
	uint32_t effective, permitted, inheritable;
};

void privilege_say(const char *text)
{
	/* Nobody is left to tell if stderr is closed. */
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		return;
}

_Noreturn void privilege_die(const char *operation)
{
	const char *reason = strerror(errno);

	privilege_say(operation);
	privilege_say(": ");
	privilege_say(reason);
	privilege_say("\n");
	_exit(1);
}

uint64_t privilege_number64(const char *text, const char *usage)
{
	unsigned long long value = 0;
	char *end = NULL;

	errno = 0;
	if (text != NULL && *text >= '0' && *text <= '9')
		value = strtoull(text, &end, 10);
	if (end == NULL || errno != 0 || *end != '\0') {
		privilege_say(usage);
		_exit(2);
	}
	return value;
}

uint32_t privilege_number(const char *text, const char *usage)
{
	uint64_t value = privilege_number64(text, usage);

	/* (uid_t)-1 means "leave it" to setresuid(2). */
	if (value >= UINT32_MAX) {
		privilege_say(usage);
		_exit(2);
	}
	return (uint32_t)value;
}

static void privilege_read(struct privilege_header *header, struct privilege_sets sets[2])
{
	*header = (struct privilege_header){PRIVILEGE_CAP_VERSION_3, 0};
	if (syscall(SYS_capget, header, sets) != 0)
		privilege_die("read capabilities");
}

void privilege_drop_bounding(uint64_t keep)
{
	struct privilege_header header;
	struct privilege_sets sets[2];

	privilege_read(&header, sets);
	/* Without CAP_SETPCAP the bounding set has to stay; no_new_privs
	 * makes it moot. */
	if (!(sets[0].effective & (1u << PRIVILEGE_CAP_SETPCAP)))
		return;
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
		if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap) != 0)
			privilege_die("drop bounding set");
}

void privilege_drop_capabilities(uint64_t keep)
{
	struct privilege_header header;
	struct privilege_sets sets[2];

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
		privilege_die("drop ambient capabilities");
	privilege_read(&header, sets);
	for (int i = 0; i < 2; i++) {
		sets[i].permitted &= (uint32_t)(keep >> (32 * i));
		sets[i].effective = sets[i].permitted;
		sets[i].inheritable = 0;
	}
	if (syscall(SYS_capset, &header, sets) != 0)
		privilege_die("drop capabilities");
}

void privilege_seal(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		privilege_die("give up new privileges");
	/* Last: a change of ids sets it to fs.suid_dumpable. */
	if (prctl(PR_SET_DUMPABLE, 0) != 0)
		privilege_die("become undumpable");
}
