/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls without a C library: the shim is loaded into programs of any.
 * Errors are returned as negative errnos.
 */
#ifndef TSUGIKI_SHIM_KERNEL_H
#define TSUGIKI_SHIM_KERNEL_H

#include <stdint.h>
#include <asm/unistd.h>

static inline long kernel6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#else
#error "the system calls of this architecture are not known here"
#endif
}

#define KERNEL0(n)	       kernel6(n, 0, 0, 0, 0, 0, 0)
#define KERNEL1(n, a)	       kernel6(n, (long)(a), 0, 0, 0, 0, 0)
#define KERNEL2(n, a, b)       kernel6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define KERNEL3(n, a, b, c)    kernel6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define KERNEL4(n, a, b, c, d) kernel6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define KERNEL5(n, a, b, c, d, e)                                                                  \
	kernel6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define KERNEL6(n, a, b, c, d, e, f)                                                               \
	kernel6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#endif
