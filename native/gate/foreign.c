// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of other ABIs than the machine's own. Two of them would get around the kernel
 * programs: listen(2), which has none, and setsockopt(2), for which they are not
 * asked. All others go on as they are, in the caller's own namespace or under the
 * eyes of the kernel programs; filters may ask about more of them than ours does.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>

#include "worker.h"

/* System calls of the 32-bit ABIs, which the C library does not name here. */
#define GATE_X32_LISTEN	     (GATE_X32 | 50)
#define GATE_X32_SETSOCKOPT  (GATE_X32 | 541)
#define GATE_X32_CLONE	     (GATE_X32 | 56)
#define GATE_X32_UNSHARE     (GATE_X32 | 272)
#define GATE_X32_SETNS	     (GATE_X32 | 308)
#define GATE_I386_SOCKETCALL 102
#define GATE_I386_CLONE	     120
#define GATE_I386_UNSHARE    310
#define GATE_I386_SETNS	     346
#define GATE_I386_LISTEN     363
#define GATE_I386_SETSOCKOPT 366
#define GATE_ARM_CLONE	     120
#define GATE_ARM_LISTEN	     284
#define GATE_ARM_SETSOCKOPT  294
#define GATE_ARM_UNSHARE     337
#define GATE_ARM_SETNS	     375

/* socketcall(2)'s first argument, linux/net.h. */
#define GATE_SYS_LISTEN	    4
#define GATE_SYS_SETSOCKOPT 14

/* A system call, whatever its ABI. */
#define GATE_CALL(arch, nr) ((uint64_t)(arch) << 32 | (uint32_t)(nr))

static uint64_t gate_call_of(const struct seccomp_notif *n)
{
	return GATE_CALL(n->data.arch, n->data.nr);
}

bool gate_is_leaving(const struct seccomp_notif *n)
{
	switch (gate_call_of(n)) {
	case GATE_CALL(GATE_ARCH, SYS_unshare):
	case GATE_CALL(GATE_ARCH, SYS_clone):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_UNSHARE):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_CLONE):
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_UNSHARE):
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_CLONE):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_UNSHARE):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_CLONE):
		return n->data.args[0] & CLONE_NEWNET;
	case GATE_CALL(GATE_ARCH, SYS_setns):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_SETNS):
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SETNS):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_SETNS):
		/* 0: a namespace of any kind. */
		return (uint32_t)n->data.args[1] == 0 || n->data.args[1] & CLONE_NEWNET;
	}
	return false;
}

static void gate_foreign_listen(struct gate_worker *w, int number, int backlog)
{
	w->ask.call = GATE_LISTEN;
	w->ask.number = number;
	w->ask.backlog = backlog;
	gate_pass(w);
}

/*
 * What socketcall(2) points to may be another option when the kernel reads it: then
 * it is set, and the programs that judge destinations are still there.
 */
static void gate_socketcall(struct gate_worker *w)
{
	const struct seccomp_notif *n = &w->n;
	int32_t args[3];

	if (n->data.args[0] != GATE_SYS_LISTEN && n->data.args[0] != GATE_SYS_SETSOCKOPT) {
		gate_proceed(w);
		return;
	}
	if (gate_read(n, (uint32_t)n->data.args[1], args, sizeof(args)) < sizeof(args)) {
		gate_proceed(w); /* which fails */
		return;
	}
	if (!gate_valid(n))
		return;
	if (n->data.args[0] == GATE_SYS_LISTEN)
		gate_foreign_listen(w, args[0], args[1]);
	else
		gate_option(w, args[1], args[2]);
}

void gate_foreign(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;

	switch (gate_call_of(&w->n)) {
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SOCKETCALL):
		gate_socketcall(w);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SETSOCKOPT):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_SETSOCKOPT):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_SETSOCKOPT):
		gate_option(w, (int)args[1], (int)args[2]);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_LISTEN):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_LISTEN):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_LISTEN):
		gate_foreign_listen(w, (int)args[0], (int)args[1]);
		break;
	default:
		gate_proceed(w);
	}
}
