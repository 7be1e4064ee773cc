/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls of the i386 ABI. int 0x80 works in 64-bit programs too: the kernel then takes
 * the i386 numbers and 32-bit registers. Pointers have to lie in low memory.
 */
#ifndef I386_H
#define I386_H

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

enum {
	I386_SOCKETCALL = 102,
	I386_SOCKET = 359,
	I386_BIND = 361,
	I386_CONNECT = 362,
	I386_LISTEN = 363,
	I386_SETSOCKOPT = 366,
	I386_SENDTO = 369,
};

#ifdef __x86_64__
static inline long i386_call(long number, long a, long b, long c, long d, long e, long f)
{
	long result;

	/* The sixth argument is in ebp, which no operand can name. */
	__asm__ volatile("push %%rbp\n\tmov %[f], %%rbp\n\tint $0x80\n\tpop %%rbp"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e), [f] "r"(f)
			 : "memory", "r8", "r9", "r10", "r11");
	result = (int32_t)result;
	if (result < 0 && result > -4096) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* A page of low memory, or MAP_FAILED. */
static inline void *i386_page(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1,
		    0);
}
#else
static inline long i386_call(long number, long a, long b, long c, long d, long e, long f)
{
	(void)number, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
	errno = ENOSYS;
	return -1;
}

static inline void *i386_page(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
#endif

#endif
