/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of a guardian that waits and undoes; see privilege_confine. */
#ifndef TSUGIKI_GUARDIAN_CALLS_H
#define TSUGIKI_GUARDIAN_CALLS_H

#include <sys/syscall.h>

#include "../../../native/privilege/privilege.h"

/* Its work is in files of cgroups. It makes no socket and starts nothing. */
static const struct privilege_call guardian_calls[] = {
#ifdef SYS_open /* arm64 has the newer ones only */
	{.number = SYS_open},	 {.number = SYS_rmdir},
#endif
	{.number = SYS_openat},	 {.number = SYS_newfstatat}, {.number = SYS_fstatfs},
	{.number = SYS_pread64}, {.number = SYS_pwrite64},   {.number = SYS_unlinkat},
	{.number = SYS_flock},	 {.number = SYS_sendto},
};

#endif
