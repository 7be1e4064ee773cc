/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of a running undo helper; see privilege_confine. */
#ifndef TSUGIKI_UNDO_HELPER_CALLS_H
#define TSUGIKI_UNDO_HELPER_CALLS_H

#include <sys/syscall.h>

#include "../../../native/privilege/privilege.h"

/* The undo helper works on files of cgroups. It makes no socket and starts no process. */
static const struct privilege_call undo_helper_calls[] = {
#ifdef SYS_open /* arm64 has only the newer calls */
	{.number = SYS_open},	 {.number = SYS_rmdir},
#endif
	{.number = SYS_openat},	 {.number = SYS_newfstatat}, {.number = SYS_fstatfs},
	{.number = SYS_pread64}, {.number = SYS_pwrite64},   {.number = SYS_unlinkat},
	{.number = SYS_flock},	 {.number = SYS_sendto},
};

#endif
