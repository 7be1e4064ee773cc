// SPDX-License-Identifier: Apache-2.0
/*
 * The empty library that 32-bit programs load instead of the shim. Their sockets stay in the
 * container, and their loader reports no error.
 */
extern const char tsugiki_stub;
const char tsugiki_stub = 0;
