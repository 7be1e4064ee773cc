/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's messages to the filter and the gate, in its system calls.
 *
 * None of the calls in question uses its sixth argument. The shim puts a mark
 * there, which the filter compares (package filter has the same numbers):
 *
 *   MARK_PASS  the socket is where the destination lies, or a new one is the container's own;
 *              nobody need be asked
 *   MARK_ASK   ask, also where the mode is to ask only for the shim's calls
 *
 * A mark is a courtesy, not a right. Who passes what should have been asked meets
 * the kernel programs, or the container's own namespace.
 *
 * What the shim needs of the gate itself is asked by a socket(2) of a family that
 * no kernel has, so that it fails with EAFNOSUPPORT where there is no gate:
 *
 *   socket(MARK_FAMILY, MARK_BOARD, 0, 0, 0, MARK_SHIM)
 *     returns a descriptor of the container's board (rules/board.h)
 *   socket(MARK_FAMILY, MARK_BATCH, PAIR, FAMILY << 8 | TYPE, COUNT, MARK_SHIM)
 *     sends sockets, at most MARK_BATCH_MAX and all in one message, into one end
 *     of a SOCK_SEQPACKET socketpair(2) of the caller; returns how many
 */
#ifndef TSUGIKI_MARKS_H
#define TSUGIKI_MARKS_H

#define MARK_PASS 0x7473756769706173ull
#define MARK_ASK  0x747375676961736bull
#define MARK_SHIM 0x747375677368696dull

#define MARK_FAMILY    (-1)
#define MARK_BOARD     1
#define MARK_BATCH     2
#define MARK_BATCH_MAX 48

#endif
