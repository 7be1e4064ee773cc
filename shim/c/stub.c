// SPDX-License-Identifier: Apache-2.0
/*
 * What 32-bit programs load in the shim's place: nothing. Their sockets stay in the
 * container, and their loader has nothing to complain about.
 */
extern const char tsugiki_stub;
const char tsugiki_stub = 0;
