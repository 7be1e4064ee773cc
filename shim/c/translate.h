/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on sockets of containers whose IPv4 is translated (docs/design/translate.md). */
#ifndef TSUGIKI_SHIM_TRANSLATE_H
#define TSUGIKI_SHIM_TRANSLATE_H

/* Connects a socket in a container whose IPv4 is translated. Returns what the kernel does. */
long shim_connect_translated(int number, const void *address, unsigned int length);

#endif
