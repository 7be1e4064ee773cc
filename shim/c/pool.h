/* SPDX-License-Identifier: Apache-2.0 */
/* Host sockets that were made in advance. */
#ifndef TSUGIKI_SHIM_POOL_H
#define TSUGIKI_SHIM_POOL_H

#include <stdbool.h>

/* Returns a host socket that was made in advance, as socket(2) would, or -1 if there is none. */
int shim_take_socket(int family, int type, int protocol);

/* Closes the sockets that were made in advance. Returns whether there were any. */
bool shim_drop_sockets(void);

/* Called around a fork(2): before and after it in the parent, and in the child, which closes its
 * copies of its parent's sockets. */
void shim_before_fork(void);
void shim_after_fork(void);
void shim_forked(void);

#endif
