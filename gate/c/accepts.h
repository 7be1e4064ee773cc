/* SPDX-License-Identifier: Apache-2.0 */
/* accept(2) of translated listeners. */
#ifndef TSUGIKI_GATE_ACCEPTS_H
#define TSUGIKI_GATE_ACCEPTS_H

#include "waiting.h"

/* Answers accept(2) or accept4(2), now or when there is a connection. */
void gate_accept(struct gate_worker *w);

/* Gives calls that wait the connections of listeners, and those whose peers have got names. */
void gate_accept_for(struct gate_worker *w, const struct gate_ready *ready);

#endif
