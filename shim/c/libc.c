// SPDX-License-Identifier: Apache-2.0
/* Results and cancellation as the program's C library has them. */
#include "libc.h"

#include <stddef.h>

#include "kernel.h"

extern int *__errno_location(void) SHIM_WEAK;
extern int pthread_setcanceltype(int type, int *old) SHIM_WEAK;

long shim_result(long result)
{
	if (result >= 0)
		return result;
	if (__errno_location != NULL)
		*__errno_location() = (int)-result;
	return -1;
}

long shim_waiting_call(long number, const long args[6])
{
	enum { ASYNCHRONOUS = 1 };
	int old;
	long result;

	if (pthread_setcanceltype == NULL)
		return kernel6(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	pthread_setcanceltype(ASYNCHRONOUS, &old);
	result = kernel6(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	pthread_setcanceltype(old, NULL);
	return result;
}
