// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of other ABIs than the machine's own. Three of them would bypass the kernel programs:
 * listen(2) and ioctl(2), which have no such programs, and setsockopt(2), whose programs the kernel
 * does not run for these ABIs. So the gate sets options itself, by a call of its own ABI, for which
 * the kernel runs the programs. It acts on the value that it has read, so a caller that changes its
 * memory changes nothing. All other calls pass through unchanged: they act in the caller's own
 * namespace, or the kernel programs check them. Composed filters may trap more of them than our
 * filter does.
 */
#define _GNU_SOURCE
#include "foreign.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../bpf/options.h"
#include "answer.h"
#include "caller.h"
#include "decide.h"
#include "gate.h"
#include "pending.h"

/* System calls of the 32-bit ABIs, which the C library does not name here. */
#define GATE_X32_SOCKET	     (GATE_X32 | 41)
#define GATE_X32_LISTEN	     (GATE_X32 | 50)
#define GATE_X32_IOCTL	     (GATE_X32 | 514)
#define GATE_X32_SETSOCKOPT  (GATE_X32 | 541)
#define GATE_X32_CLONE	     (GATE_X32 | 56)
#define GATE_X32_UNSHARE     (GATE_X32 | 272)
#define GATE_X32_SETNS	     (GATE_X32 | 308)
#define GATE_I386_IOCTL	     54
#define GATE_I386_SOCKETCALL 102
#define GATE_I386_CLONE	     120
#define GATE_I386_UNSHARE    310
#define GATE_I386_SETNS	     346
#define GATE_I386_SOCKET     359
#define GATE_I386_LISTEN     363
#define GATE_I386_SETSOCKOPT 366
#define GATE_ARM_IOCTL	     54
#define GATE_ARM_CLONE	     120
#define GATE_ARM_SOCKET	     281
#define GATE_ARM_LISTEN	     284
#define GATE_ARM_SETSOCKOPT  294
#define GATE_ARM_UNSHARE     337
#define GATE_ARM_SETNS	     375

/* socketcall(2)'s first argument, linux/net.h. */
#define GATE_SYS_SOCKET	    1
#define GATE_SYS_LISTEN	    4
#define GATE_SYS_SETSOCKOPT 14

/* Options of SOL_SOCKET whose value is a pointer, or a descriptor of the caller. */
#define GATE_SO_ATTACH_FILTER	      26
#define GATE_SO_ATTACH_BPF	      50
#define GATE_SO_ATTACH_REUSEPORT_CBPF 51
#define GATE_SO_ATTACH_REUSEPORT_EBPF 52
/* From here on, options of IP and IPv6 are those of netfilter, which need CAP_NET_ADMIN. */
#define GATE_NETFILTER_OPTIONS 64

/* The longest value that is read. No option that a program may set has a longer one. */
#define GATE_VALUE_MAX 512

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
	w->request.call = GATE_LISTEN;
	w->request.number = number;
	w->request.backlog = backlog;
	gate_pass_if(w, !gate.board->untrapped);
}

static void gate_foreign_socket(struct gate_worker *w, int family)
{
	w->request.call = GATE_SOCKET;
	if (gate_family_is_elsewhere(family))
		gate_answer(w, -EAFNOSUPPORT);
	else
		gate_proceed(w);
}

/* setsockopt(2) of another ABI. */
struct gate_setting {
	int number, level, name;
	uint64_t value;
	uint32_t length;
};

static bool gate_refers(const struct gate_setting *s)
{
	if (s->level == SOL_SOCKET)
		return s->name == GATE_SO_ATTACH_FILTER ||
		       (s->name >= GATE_SO_ATTACH_BPF && s->name <= GATE_SO_ATTACH_REUSEPORT_EBPF);
	return (s->level == SOL_IP || s->level == SOL_IPV6) && s->name >= GATE_NETFILTER_OPTIONS &&
	       s->name < GATE_NETFILTER_OPTIONS + 4;
}

/* Converts a time of 32-bit words into one of 64-bit words. Returns the value's new length. */
static uint32_t gate_widen(const struct gate_setting *s, void *value, uint32_t length)
{
	int32_t narrow[2];
	int64_t wide[2];

	if (s->level != SOL_SOCKET || (s->name != SO_RCVTIMEO && s->name != SO_SNDTIMEO) ||
	    length != sizeof(narrow))
		return length;
	memcpy(narrow, value, sizeof(narrow));
	wide[0] = narrow[0];
	wide[1] = narrow[1];
	memcpy(value, wide, sizeof(wide));
	return sizeof(wide);
}

/* Sets an option for the caller, on the file that its descriptor refers to now. */
static void gate_set(struct gate_worker *w, const struct gate_setting *s)
{
	uint8_t value[GATE_VALUE_MAX];
	uint32_t length = s->length;
	int file, error;

	w->request.call = GATE_SETSOCKOPT;
	if (options_refused(s->level, s->name)) {
		gate_answer(w, -EPERM);
		return;
	}
	if (length > sizeof(value)) {
		gate_answer(w, -EINVAL);
		return;
	}
	if (gate_read(&w->n, s->value, value, length) < length) {
		gate_answer(w, -EFAULT);
		return;
	}
	file = gate_file_of(w, s->number);
	error = errno;
	if (!gate_valid(&w->n)) {
		if (file >= 0)
			close(file);
		return;
	}
	if (file < 0) { /* ENOPROTOOPT: before 6.9, its descriptors cannot be taken */
		gate_answer(w, error == EBADF ? -EBADF : -ENOPROTOOPT);
		return;
	}
	length = gate_widen(s, value, length);
	error = setsockopt(file, s->level, s->name, value, length) == 0 ? 0 : errno;
	close(file);
	gate_answer(w, -error);
}

/* An option's number is in a register, which nobody can change. */
static void gate_foreign_option(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;
	struct gate_setting s = {(int)args[0], (int)args[1], (int)args[2], (uint32_t)args[3],
				 (uint32_t)args[4]};

	if (gate_refers(&s))
		gate_proceed(w);
	else
		gate_set(w, &s);
}

/*
 * What socketcall(2) points to may be another call's arguments when the kernel reads it,
 * so that does not read it; but of socket(2), whose family can change between the gate's look
 * and the kernel's. An option that refers to more memory is not there: who wants
 * one has setsockopt(2) itself (4.3).
 */
static void gate_socketcall_option(struct gate_worker *w, const uint32_t *args)
{
	const struct gate_setting s = {(int)args[0], (int)args[1], (int)args[2], args[3], args[4]};

	if (gate_refers(&s))
		gate_answer(w, -ENOPROTOOPT);
	else
		gate_set(w, &s);
}

static void gate_socketcall(struct gate_worker *w)
{
	const struct seccomp_notif *n = &w->n;
	uint32_t args[5] = {0}, call = (uint32_t)n->data.args[0], size = sizeof(args);

	if (call == GATE_SYS_SOCKET)
		size = sizeof(args[0]);
	else if (call == GATE_SYS_LISTEN)
		size = 2 * sizeof(args[0]);
	else if (call != GATE_SYS_SETSOCKOPT) {
		gate_proceed(w);
		return;
	}
	if (gate_read(n, (uint32_t)n->data.args[1], args, size) < size) {
		gate_answer(w, -EFAULT);
		return;
	}
	if (!gate_valid(n))
		return;
	if (call == GATE_SYS_SOCKET)
		gate_foreign_socket(w, (int)args[0]);
	else if (call == GATE_SYS_LISTEN)
		gate_foreign_listen(w, (int)args[0], (int)args[1]);
	else
		gate_socketcall_option(w, args);
}

void gate_foreign(struct gate_worker *w)
{
	const __u64 *args = w->n.data.args;

	switch (gate_call_of(&w->n)) {
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SOCKETCALL):
		gate_socketcall(w);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SOCKET):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_SOCKET):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_SOCKET):
		gate_foreign_socket(w, (int)args[0]);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_SETSOCKOPT):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_SETSOCKOPT):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_SETSOCKOPT):
		gate_foreign_option(w);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_LISTEN):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_LISTEN):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_LISTEN):
		gate_foreign_listen(w, (int)args[0], (int)args[1]);
		break;
	case GATE_CALL(AUDIT_ARCH_I386, GATE_I386_IOCTL):
	case GATE_CALL(AUDIT_ARCH_X86_64, GATE_X32_IOCTL):
	case GATE_CALL(AUDIT_ARCH_ARM, GATE_ARM_IOCTL):
		w->request.call = GATE_IOCTL;
		w->request.narrow = true;
		gate_pass_if(w, gate_ioctl_is_passed((uint32_t)w->n.data.args[1]));
		break;
	default:
		gate_proceed(w);
	}
}
