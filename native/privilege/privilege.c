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

/* From linux/audit.h: our calls are of one kind. Others reach the kernel by other numbers. */
#if defined(__x86_64__)
#define PRIVILEGE_ARCH 0xc000003e
#elif defined(__aarch64__)
#define PRIVILEGE_ARCH 0xc00000b7
#endif

/* From linux/seccomp.h and linux/filter.h. */
enum { PRIVILEGE_SET_FILTER = 1, PRIVILEGE_SPEC_ALLOW = 4 };
#define PRIVILEGE_ALLOW 0x7fff0000u
#define PRIVILEGE_EPERM (0x00050000u | EPERM)
#define PRIVILEGE_KILL	0x80000000u
enum { PRIVILEGE_DATA_NUMBER = 0, PRIVILEGE_DATA_ARCH = 4, PRIVILEGE_DATA_FIRST = 16 };
enum { PRIVILEGE_LOAD = 0x20, PRIVILEGE_IF_EQUAL = 0x15, PRIVILEGE_RETURN = 0x06 };

struct privilege_instruction {
	uint16_t code;
	uint8_t jump_true, jump_false;
	uint32_t k;
};

struct privilege_program {
	unsigned short length;
	struct privilege_instruction *code;
};

/* What processes do without anybody's leave. Nothing here names another process, a
 * file, or an address of a network. */
static const uint16_t privilege_own_calls[] = {
	SYS_read,	   SYS_readv,	     SYS_write,	       SYS_writev,
	SYS_close,	   SYS_close_range,  SYS_fcntl,	       SYS_fstat,
	SYS_dup,	   SYS_dup3,	     SYS_ppoll,	       SYS_mmap,
	SYS_munmap,	   SYS_mprotect,     SYS_mremap,       SYS_madvise,
	SYS_brk,	   SYS_futex,	     SYS_rt_sigaction, SYS_rt_sigprocmask,
	SYS_rt_sigreturn,  SYS_sigaltstack,  SYS_nanosleep,    SYS_clock_nanosleep,
	SYS_clock_gettime, SYS_gettimeofday, SYS_getpid,       SYS_gettid,
	SYS_getuid,	   SYS_geteuid,	     SYS_sched_yield,  SYS_restart_syscall,
	SYS_exit,	   SYS_exit_group,
#ifdef SYS_dup2 /* arm64 has the newer ones only */
	SYS_dup2,	   SYS_poll,	     SYS_time,
#endif
};

#define PRIVILEGE_OWN_CALLS  (sizeof(privilege_own_calls) / sizeof(*privilege_own_calls))
#define PRIVILEGE_FILTER_MAX 256

struct privilege_filter {
	struct privilege_instruction code[PRIVILEGE_FILTER_MAX];
	unsigned short length;
};

static void privilege_emit(struct privilege_filter *f, uint16_t code, uint32_t k, uint8_t jump_true,
			   uint8_t jump_false)
{
	if (f->length == PRIVILEGE_FILTER_MAX)
		abort();
	f->code[f->length++] = (struct privilege_instruction){code, jump_true, jump_false, k};
}

static void privilege_allow(struct privilege_filter *f, const struct privilege_call *c)
{
	if (!c->checked) {
		privilege_emit(f, PRIVILEGE_IF_EQUAL, c->number, 0, 1);
		privilege_emit(f, PRIVILEGE_RETURN, PRIVILEGE_ALLOW, 0, 0);
		return;
	}
	privilege_emit(f, PRIVILEGE_IF_EQUAL, c->number, 0, 4);
	/* Its lower half: the kernel takes no more of an int. Both machines are little-endian. */
	privilege_emit(f, PRIVILEGE_LOAD, PRIVILEGE_DATA_FIRST, 0, 0);
	privilege_emit(f, PRIVILEGE_IF_EQUAL, c->first, 0, 1);
	privilege_emit(f, PRIVILEGE_RETURN, PRIVILEGE_ALLOW, 0, 0);
	privilege_emit(f, PRIVILEGE_RETURN, PRIVILEGE_EPERM, 0, 0);
}

void privilege_confine(const struct privilege_call *may, size_t count)
{
	static struct privilege_filter f;
	struct privilege_program program = {.code = f.code};

#ifdef __SANITIZE_ADDRESS__
	return; /* the sanitizer calls what it likes */
#endif
	f.length = 0;
	privilege_emit(&f, PRIVILEGE_LOAD, PRIVILEGE_DATA_ARCH, 0, 0);
	privilege_emit(&f, PRIVILEGE_IF_EQUAL, PRIVILEGE_ARCH, 1, 0);
	privilege_emit(&f, PRIVILEGE_RETURN, PRIVILEGE_KILL, 0, 0);
	privilege_emit(&f, PRIVILEGE_LOAD, PRIVILEGE_DATA_NUMBER, 0, 0);
	for (size_t i = 0; i < count; i++)
		privilege_allow(&f, &may[i]);
	for (size_t i = 0; i < PRIVILEGE_OWN_CALLS; i++)
		privilege_allow(&f, &(struct privilege_call){.number = privilege_own_calls[i]});
	privilege_emit(&f, PRIVILEGE_RETURN, PRIVILEGE_EPERM, 0, 0);
	program.length = f.length;
	/* Kernels before 5.16 slow down who has a filter, unless told not to. */
	if (syscall(SYS_seccomp, PRIVILEGE_SET_FILTER, PRIVILEGE_SPEC_ALLOW, &program) != 0)
		privilege_die("confine system calls");
}
