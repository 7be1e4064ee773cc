/* SPDX-License-Identifier: Apache-2.0 */
/* Host sockets that were made in advance. */
#ifndef TSUGIKI_SHIM_POOL_H
#define TSUGIKI_SHIM_POOL_H

#include <stdbool.h>

/*
 * A host socket that was made in advance, as socket(2) would return it, or -1
 * where there is none: the caller then asks for one.
 */
int shim_take_socket(int family, int type, int protocol);

/* Closes the sockets that were made in advance; returns whether there were any. */
bool shim_drop_sockets(void);

/* Around a fork(2): in the parent, and in the child, which closes its copies of
 * what is its parent's. */
void shim_before_fork(void);
void shim_after_fork(void);
void shim_forked(void);

#endif
