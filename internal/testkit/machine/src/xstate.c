/*
 * The kernel of a host whose CPU has more extended state than User-Mode Linux knows (AMX) refuses
 * to set a part of that state (xstateregs_set in arch/x86/kernel/fpu/regset.c: EFAULT). This
 * ptrace(2), which is preloaded into linux.uml, reads the whole state, changes the part, and sets
 * the whole.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NT_X86_XSTATE 0x202

long ptrace(enum __ptrace_request request, ...)
{
	static char all[16384]; /* User-Mode Linux has one thread, and small stacks */
	struct iovec whole = {all, sizeof(all)}, *part;
	long pid, addr, data, word, result;
	va_list args;

	va_start(args, request);
	pid = va_arg(args, long);
	addr = va_arg(args, long);
	data = va_arg(args, long);
	va_end(args);
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA ||
	    request == PTRACE_PEEKUSER) {
		result = syscall(SYS_ptrace, request, pid, addr, &word); /* as libc does it */
		if (result < 0)
			return result;
		errno = 0;
		return word;
	}
	part = (struct iovec *)data;
	if (request == PTRACE_SETREGSET && addr == NT_X86_XSTATE &&
	    syscall(SYS_ptrace, PTRACE_GETREGSET, pid, addr, &whole) == 0 &&
	    part->iov_len < whole.iov_len) {
		memcpy(all, part->iov_base, part->iov_len);
		data = (long)&whole;
	}
	return syscall(SYS_ptrace, request, pid, addr, data);
}
