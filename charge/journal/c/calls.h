/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of an undo helper that waits and undoes; see privilege_confine. */
#ifndef TSUGIKI_UNDO_HELPER_CALLS_H
#define TSUGIKI_UNDO_HELPER_CALLS_H

#include <sys/syscall.h>

#include "../../../native/privilege/privilege.h"

/* Its work is in files of cgroups. It makes no socket and starts nothing. */
static const struct privilege_call undo_helper_calls[] = {
#ifdef SYS_open /* arm64 has the newer ones only */
	{.number = SYS_open},	 {.number = SYS_rmdir},
#endif
	{.number = SYS_openat},	 {.number = SYS_newfstatat}, {.number = SYS_fstatfs},
	{.number = SYS_pread64}, {.number = SYS_pwrite64},   {.number = SYS_unlinkat},
	{.number = SYS_flock},	 {.number = SYS_sendto},
};

#endif
