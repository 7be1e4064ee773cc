/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim has of the program's C library, if that has it. */
#ifndef TSUGIKI_SHIM_LIBC_H
#define TSUGIKI_SHIM_LIBC_H

#define SHIM_EXPORT __attribute__((visibility("default")))
#define SHIM_WEAK   __attribute__((weak))

/* Sets errno, as the C library does, if RESULT is one. */
long shim_result(long result);

/* A system call that may wait, which is where a thread can be cancelled. */
long shim_waiting_call(long number, const long args[6]);

#endif
