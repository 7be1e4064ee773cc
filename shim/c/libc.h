/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the program's C library that the shim uses, where the library has them. */
#ifndef TSUGIKI_SHIM_LIBC_H
#define TSUGIKI_SHIM_LIBC_H

#define SHIM_EXPORT __attribute__((visibility("default")))
#define SHIM_WEAK   __attribute__((weak))

/* Returns the result of a system call as the C library does: -1 with errno if it is an error. */
long shim_result(long result);

/* Makes a system call that may wait. A thread can be cancelled there. */
long shim_waiting_call(long number, const long args[6]);

#endif
