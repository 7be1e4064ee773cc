/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim's two halves, and what they need of each other, see shim.c. */
#ifndef TSUGIKI_SHIM_H
#define TSUGIKI_SHIM_H

#include "../rules/board.h"

/* The container's board, or NULL as long as it is not worth while, or in vain. */
const struct board *shim_board(void);

/*
 * A host socket that was made in advance, as socket(2) would return it, or -1
 * where there is none: the caller then asks for one.
 */
int shim_take_socket(int family, int type, int protocol);

/* SO_NETNS_COOKIE (71) or SO_COOKIE (57) of a socket; 0 if it has none. */
uint64_t shim_cookie(int number, int which);

/* Forgets, in the child of a fork(2), what is its parent's. */
void shim_forked(void);

#endif
