/* SPDX-License-Identifier: Apache-2.0 */
/* Connects of translated sockets, to which the kernel refuses IPv4 addresses. */
#ifndef TSUGIKI_GATE_MAPPED_H
#define TSUGIKI_GATE_MAPPED_H

#include <stdbool.h>

#include "worker.h"

/* Answers a connect to the IPv4 address of the request, if the socket is a translated one and the
 * kernel programs know the host. Returns false if the supervisor has to answer. */
bool gate_connect_mapped(struct gate_worker *w);

#endif
