/* SPDX-License-Identifier: Apache-2.0 */
/* How the native processes start: what they say when they cannot, and how they
 * give up what they need not have. */
#ifndef TSUGIKI_PRIVILEGE_H
#define TSUGIKI_PRIVILEGE_H

#include <stddef.h>
#include <stdint.h>

/* From linux/capability.h, which a C library need not come with. */
#define PRIVILEGE_CAP_SYS_PTRACE 19

/* Writes to stderr, if it is open. */
void privilege_say(const char *text);

/* Says what failed and errno's reason, and ends the process with status 1. */
_Noreturn void privilege_die(const char *operation);

/* Reads a decimal number, or one below 2^32 - 1; else says USAGE and exits with 2. */
uint64_t privilege_number64(const char *text, const char *usage);
uint32_t privilege_number(const char *text, const char *usage);

/*
 * Gives up all capabilities but those in KEEP, bit N for capability N, for good.
 * Ids can be changed between the two: the bounding set goes first, for that
 * needs CAP_SETPCAP, and the capabilities last. Any failure ends the process.
 */
void privilege_drop_bounding(uint64_t keep);
void privilege_drop_capabilities(uint64_t keep);

/* No set-user-ID program, no debugger, no core. */
void privilege_seal(void);

/* A system call that a process may make. */
struct privilege_call {
	uint32_t number;
	uint32_t first; /* what the first argument has to be, if CHECKED */
	uint32_t checked;
};

/*
 * Leaves this process, and what it forks, the calls in MAY and those that every
 * process needs for memory, time, threads, signals to itself and descriptors that it
 * has. All others fail with EPERM. It comes after privilege_seal.
 */
void privilege_confine(const struct privilege_call *may, size_t count);

#endif
