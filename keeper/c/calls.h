/* SPDX-License-Identifier: Apache-2.0 */
/* The system calls of a keeper that serves; see privilege_confine. */
#ifndef TSUGIKI_KEEPER_CALLS_H
#define TSUGIKI_KEEPER_CALLS_H

#include <sys/syscall.h>

#include "../../native/privilege/privilege.h"

/* The keeper opens nothing and connects nothing: it hands over only sockets that it has made. */
static const struct privilege_call keeper_calls[] = {
	{.number = SYS_socket},
	{.number = SYS_sendmsg},
	{.number = SYS_recvmsg},
	{.number = SYS_epoll_ctl},
};

#endif
